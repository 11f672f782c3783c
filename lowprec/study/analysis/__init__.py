"""Statistics of studies: estimates, verdicts, power, and comparisons of two precisions."""
