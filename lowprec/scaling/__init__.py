"""Block scaling: how scales are assigned to elements and computed, and matrices of codes with their scales."""
