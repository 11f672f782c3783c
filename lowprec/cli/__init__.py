"""The command line: one file per group of commands. Every command imports its modules when it runs."""

from .app import main as main
