"""Running studies: plans and tasks, the trainer backend, executors, stored runs and their fingerprints."""
