"""Dot products in plain float32 and float64 lanes."""
