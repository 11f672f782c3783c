"""Diagnosis of codes and outputs: the quantizer that made codes, and the arithmetic of a matrix product.

The rooms `check` and `identify` compute with kernels, since they try thousands of quantizers and accumulators.
"""
