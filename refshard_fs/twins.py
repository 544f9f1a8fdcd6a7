"""Which filesystems share what was written: those made from one another, and those made from URLs with equal arguments.

zarr and xarray are given a URL and options, and make a filesystem of their own, which fsspec gives no ``mode``. What is
made from a URL thus writes where that one does which somebody holds, and opened with the same arguments and a mode.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from refshard_fs.overlay import overlay_with

__all__ = ["BY_URL", "FSSPEC_ARGUMENTS", "shared"]

BY_URL: Final = "by_url"  # the argument that fsspec adds to those of a URL, and no filesystem keeps
# What fsspec's base classes take.
FSSPEC_ARGUMENTS: Final = frozenset(
    [
        "asynchronous",
        "batch_size",
        "listings_expiry_time",
        "loop",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    ]
)
_NOT_COMPARED: Final = FSSPEC_ARGUMENTS | {"mode", "overlay"}


def shared(constructor: Callable[..., Any], arguments: Mapping[str, Any], *, by_url: bool) -> tuple[Any, Any]:
    """Return the ``overlay`` that a filesystem of these arguments is to have, None for none, and what it is known by.

    That is one that there is, or a new name. Others of equal arguments know it by those that are not the default.
    """
    given, mode = arguments.get("overlay"), arguments.get("mode")
    if given is not None or mode == "r" or (mode is None and not by_url):
        return given, None
    parameters = inspect.signature(constructor).parameters
    known = {}
    for name, value in arguments.items():
        is_default = value is None or (name in parameters and value == parameters[name].default)
        if name not in _NOT_COMPARED and not is_default:
            known[name] = value
    found = overlay_with(known) if by_url else None
    if found is not None or mode is None:
        return found, None
    return uuid.uuid4().hex, known
