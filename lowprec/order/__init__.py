"""Orders of summation: revealed from a callable, named for public libraries, and computed bit by bit."""
