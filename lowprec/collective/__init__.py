"""Collectives: the orders and formats in which reductions over ranks add arrays."""
