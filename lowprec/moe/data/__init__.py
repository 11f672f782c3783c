"""What is trained on: texts, a synthetic source, and the windows that a step reads."""
