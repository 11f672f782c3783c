"""Measurements of the same weights in several precisions, without training."""
