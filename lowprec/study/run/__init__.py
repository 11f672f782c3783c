"""How it is run: plans and their tasks, the trainer behind them, executors, runs on disk and their fingerprints."""
