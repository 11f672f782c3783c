"""Operands of real multiplications, recorded once and multiplied on many accumulators."""
