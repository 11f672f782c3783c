"""Aligned sums in float64 lanes: of products, and of exact partial sums of FP4 products in bytes."""
