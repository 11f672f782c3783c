"""Tolerances: proven bounds, expected errors, faults, and criteria of tests."""
