"""Matrix products with the summation rules of tensor cores: accumulators, GEMM libraries, instructions and GEMMs."""
