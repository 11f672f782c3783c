"""Aligned sums of FP8 products in float32 lanes."""
