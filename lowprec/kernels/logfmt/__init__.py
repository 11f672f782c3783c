"""LogFMT tiles: the grid, codes and values, both arithmetics."""
