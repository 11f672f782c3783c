"""Comparison of two recorded runs of one model: finds the first operation with different output bits."""
