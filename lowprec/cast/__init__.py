"""Casts of arrays: values to codes, codes to values, values onto a grid; codes packed into bits."""
