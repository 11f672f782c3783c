"""Attention kernels, forward and backward, one query or one head at a time."""
