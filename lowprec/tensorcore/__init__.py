"""Products as tensor cores sum them: accumulators and libraries as data, single instructions, whole GEMMs."""
