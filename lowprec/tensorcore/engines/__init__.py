"""Engines that compute products, one per file; `selection` chooses between them, and `reference` defines the bits."""
