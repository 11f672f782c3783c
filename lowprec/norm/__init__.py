"""Functions of rows: RMSNorm, LayerNorm, softmax and log-softmax as formulas in which every operation is rounded."""
