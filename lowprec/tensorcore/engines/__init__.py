"""Ways to compute a product: one file for each, `selection` chooses between them, `reference` defines the bits."""
