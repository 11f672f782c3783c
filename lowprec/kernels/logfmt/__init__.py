"""LogFMT tiles: grid, encoding and decoding in both arithmetics."""
