"""Accumulation of matrix units and CPU kernels, one file a vendor or class of machine."""
