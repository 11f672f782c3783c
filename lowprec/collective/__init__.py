"""Collectives: the order and the format in which ranks add arrays when they reduce them together."""
