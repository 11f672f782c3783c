"""Whose bits are these: operands and outputs in, the arithmetic out."""
