"""A training run: optimizer, schedule, trainer, checkpoints and output files."""
