"""Which zarr reads what is shown: the one that the process has imported, or else the one that is installed."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["zarr_major"]


def zarr_major() -> int | None:
    """Return the first number of zarr's version; None where there is no zarr."""
    found = getattr(sys.modules.get("zarr"), "__version__", None)
    try:
        major = (found if isinstance(found, str) else version("zarr")).partition(".")[0]
    except PackageNotFoundError:
        return None
    return int(major) if major.isdecimal() else None
