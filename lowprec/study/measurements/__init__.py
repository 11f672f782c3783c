"""What is measured of a model's weights, or of its multiplications: everything here makes numbers of runs."""
