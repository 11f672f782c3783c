"""Number formats as data: the layout of codes, how values are rounded, and what becomes of what does not fit."""
