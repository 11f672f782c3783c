"""Identification of the arithmetic of a matrix product from its operands and outputs."""
