"""Diagnosis of codes and outputs: the quantizer that made codes, and the arithmetic of a matrix product.

`check` and `identify` compute with compiled kernels, because they try thousands of quantizers and accumulators.
"""
