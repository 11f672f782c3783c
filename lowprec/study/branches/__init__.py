"""Studies that train arms from BF16 checkpoints or from scratch, and compare each run with one of the reference."""
