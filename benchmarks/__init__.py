"""Benchmarks of this package and of other packages; each module is a program."""

import os
import sys

# Other packages were compiled to bytecode when they were installed. Keep the bytecode of this package, too: otherwise
# each measured process would compile it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
