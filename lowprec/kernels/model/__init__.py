"""What the trainer computes between its products: attention, norms, routing, the optimizer, divergences."""
