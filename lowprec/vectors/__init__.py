"""Test vectors for other suites: labelled sets that the oracle answers, their encodings, and recordings of real GPUs.

No kernel answers a vector: a kernel is one more implementation that the vectors test.
"""
