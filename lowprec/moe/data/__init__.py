"""Training data: texts, a synthetic source, and the windows of each step."""
