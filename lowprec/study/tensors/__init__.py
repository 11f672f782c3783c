"""Studies without a model: errors of formats and of single GEMMs, counted successes, and tables of claims."""
