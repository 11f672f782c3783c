"""Conformance board: operations of released packages compared with lowprec and the oracle, bit for bit.

Each file of `adapters` defines the operations of one package. `environments` runs them in a separate environment,
`compare` compares the answers and returns the cells of the board, and `page` writes the cells as Markdown.
"""
