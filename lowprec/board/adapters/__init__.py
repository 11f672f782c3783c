"""Adapters: one file per package, with its operations and the lowprec entries that they are compared with.

They run in the package's environment, where lowprec is not installed: they import only NumPy and, inside functions,
the package.
"""
