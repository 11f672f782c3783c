"""Measurements of fixed weights in several precisions, without training."""
