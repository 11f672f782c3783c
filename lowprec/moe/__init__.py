"""The NumPy Mixture-of-Experts trainer: small models of DeepSeek-V3's architecture, in the precision of a recipe."""
