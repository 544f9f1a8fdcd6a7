"""Python's own zstd, wherever this version of Python has it."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def zstd() -> Any:
    """Return the module: from 3.14 on it is in the library, before that in backports. Few sources need it."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
