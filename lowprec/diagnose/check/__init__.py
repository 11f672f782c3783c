"""Whose codes and scales are these, and what is wrong with mine: a catalogue of causes, and the search among them."""
