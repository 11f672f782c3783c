"""The model: shapes, layers with their gradients, routing, and activations saved for the backward pass."""
