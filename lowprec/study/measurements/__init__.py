"""Measurements of a model's weights or of its products: the code that computes the numbers that runs store."""
