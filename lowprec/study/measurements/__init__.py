"""Measurements of a model's weights or of its products; the code here determines the numbers of runs."""
