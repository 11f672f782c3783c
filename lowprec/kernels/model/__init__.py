"""Kernels of the trainer between its products: attention, norms, routing, the optimizer, divergences."""
