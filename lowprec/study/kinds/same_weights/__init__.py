"""Every arm computes the same batch from the same weights."""
