"""What rounding can do to a result: proven bounds, expected errors, faults, and criteria of tests."""
