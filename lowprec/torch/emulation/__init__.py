"""PyTorch's forward passes computed by a stack, operation by operation, and compared with PyTorch or another stack."""
