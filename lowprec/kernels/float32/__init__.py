"""Float32 products in one fixed order."""
