"""The NumPy Mixture-of-Experts trainer: DeepSeek-V3 in miniature, its precision a recipe."""
