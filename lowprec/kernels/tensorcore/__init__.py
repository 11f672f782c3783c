"""Sums of products by the rules of tensor cores: integer references, operand layouts, register tiles, loops."""
