"""Orders of summation: found by calls of a function, named for public libraries, and computed bit for bit."""
