"""Block quantization: largest magnitudes, scales, codes or values of a block; the Hadamard transform."""
