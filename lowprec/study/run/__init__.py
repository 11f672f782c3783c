"""How it is run: plans, tasks, executors, and runs on disk."""
