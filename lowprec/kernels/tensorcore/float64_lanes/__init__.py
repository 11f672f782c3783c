"""Aligned sums in float64 lanes: of values, and of runs of FP4 products in bytes."""
