"""The command line: one file a group of commands, each importing what it needs when it runs."""

from .app import main as main
