"""Branches of a BF16 checkpoint, or trainings from scratch: each arm in pairs with the reference."""
