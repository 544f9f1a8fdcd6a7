"""Measurements side by side with other readers; each module is a program."""

import os
import sys

# Peers were compiled when they were installed; the processes that are measured shall not compile this package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
