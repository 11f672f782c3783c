"""Block scaling: which elements share a scale, how scales are computed, and matrices of codes with their scales."""
