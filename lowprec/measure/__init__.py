"""Measures: the difference of two arrays, the errors of a format on data, and checks that casts give correct bits."""

from . import metrics as metrics
