"""What is asked: arms, sizes, stress, expectations and published claims, sources."""
