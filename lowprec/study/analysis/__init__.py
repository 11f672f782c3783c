"""What the numbers say: statistics, power, comparisons of two precisions."""
