"""Errors of single GEMMs."""
