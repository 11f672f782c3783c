"""Branches of checkpoints of several sizes, lengths and corpora, and a line through what they say."""
