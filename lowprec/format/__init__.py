"""Number formats as data: layout of codes, rounding modes, and policies for values that a format cannot represent."""
