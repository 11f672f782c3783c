"""Element-wise casts: values to codes and back, rounding, random bits, bit packing."""
