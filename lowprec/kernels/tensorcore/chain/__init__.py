"""Chains of float32 fused multiply-adds in increasing k."""
