"""Reference implementations of the kinds of accumulators: plain loops over integers and exact float64 numbers."""
