"""Sums of products as tensor cores make them: integer references, operand layouts, register tiles, loops."""
