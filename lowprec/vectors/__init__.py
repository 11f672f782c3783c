"""Test vectors for other suites: labelled sets answered by the oracle, their encodings, and recordings of real GPUs.

No kernel computes an answer: kernels are among the implementations that the vectors test.
"""
