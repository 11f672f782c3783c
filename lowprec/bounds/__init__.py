"""Tolerances of tests: proven bounds and expected errors, faults of kernels, and criteria of public suites."""
