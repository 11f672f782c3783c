"""The model: shapes, layers with their gradients, routing, and what is kept for the backward pass."""
