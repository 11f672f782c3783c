"""Bounds on the errors of chains of products."""
