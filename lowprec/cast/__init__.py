"""Casts of arrays: encode, decode and round to a format's grid; pack codes into bits."""
