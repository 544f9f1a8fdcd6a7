"""The command ``refshard``: a module for each group of commands, and the program that puts them together."""

from refshard_fs.cli.program import main

__all__ = ["main"]
