"""Collectives: which rank adds what, in which order and format, when ranks reduce arrays together."""
