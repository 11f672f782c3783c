"""Comparison of two recorded runs of one model, which finds the first operation whose bits differ."""
