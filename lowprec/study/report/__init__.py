"""How it is told: documents, pages, and what figures and tables of several kinds share."""
