"""The kinds of studies, a folder each."""
