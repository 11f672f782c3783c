"""Conformance board: operations of released packages compared with lowprec and the oracle, bit for bit.

Each file of `adapters` defines the operations of one package. `environments` runs them in a separate environment,
`compare` makes a cell of each answer, and `page` writes the cells as Markdown.
"""
