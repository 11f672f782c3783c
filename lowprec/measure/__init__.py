"""Measures: how far two arrays are apart, what a format does to data, and whether casts give the bits they should."""

from . import metrics as metrics
