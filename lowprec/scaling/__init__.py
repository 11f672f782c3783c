"""Block scaling: which scale belongs to which element, how scales come about, and codes together with their scales."""
