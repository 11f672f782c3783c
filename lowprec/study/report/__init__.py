"""Reports: documents, pages, and parts that figures and tables of several kinds of study share."""
