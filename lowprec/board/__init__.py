"""Conformance board: operations of released packages compared with lowprec and the oracle, bit for bit.

A file of `adapters` has the operations of one package. `environments` runs them in a separate environment,
`compare` makes a cell of each answer, and `page` writes the cells as Markdown.
"""
