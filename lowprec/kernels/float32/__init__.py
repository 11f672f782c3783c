"""Float32 products in one fixed order, and exp and log without a libm."""
