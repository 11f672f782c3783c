"""Test vectors for other people's suites: made by the oracle, labelled, the same bytes anywhere; and what differs.

Nothing here computes an answer with a kernel: a kernel is one more implementation that vectors test.
"""
