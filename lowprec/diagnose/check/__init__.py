"""Identify the quantizer behind codes and scales, and explain differences: causes, and the search among them."""
