"""A training run: optimizer, schedule, trainer, checkpoints and the files it leaves."""
