"""Identification of the quantizer that made codes and scales, and of the causes of differences from a quantizer."""
