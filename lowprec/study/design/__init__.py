"""What is asked: arms, sizes, stress, expectations."""
