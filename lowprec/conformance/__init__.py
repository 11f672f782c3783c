"""For other people's suites: test vectors, labelled, the same bytes anywhere; what differs; whose arithmetic a dump is.

Vectors are made by the oracle and never by a kernel: a kernel is one more implementation that they test. What
identifies a dump computes with kernels, as it tries thousands of accumulators.
"""
