"""A table of measured claims."""
