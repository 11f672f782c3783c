"""How it is told: documents, pages, figures, sentences."""
