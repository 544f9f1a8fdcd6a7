"""Which filesystems share an overlay: those made from one another, and those made from URLs with equal arguments.

zarr makes a filesystem anew, from its arguments, for another event loop: it finds the overlay by the id among them.
zarr and xarray are given a URL and options, and make a filesystem of their own, which fsspec gives no ``mode``. What
is made from a URL thus writes where that one does which somebody holds, and opened with the same arguments and a mode.
"""

from __future__ import annotations

import inspect
import os
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from refshard_fs.session.overlay import Overlay, OverlayCopy

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
WORKERS: Final = 16  # overlays of other processes that are kept, so that this one has one name from task to task

_known: weakref.WeakValueDictionary[str, Overlay] = weakref.WeakValueDictionary()
_workers: OrderedDict[str, Overlay] = OrderedDict()
_registry = threading.Lock()


def overlay_of(identity: str | OverlayCopy | None, source: str) -> Overlay:
    """Return the overlay called ``identity``; a new one if there is none here, which may come from another process."""
    name = identity.id if isinstance(identity, OverlayCopy) else identity
    with _registry:
        known = None if name is None else _known.get(name)
        is_new = known is None
        if known is None:
            known = Overlay(name or uuid.uuid4().hex, source)
            _known[known.id] = known
        if isinstance(identity, OverlayCopy) and (is_new or known.worker is not None):
            known.become(identity)
            _workers[known.id] = known
            while len(_workers) > WORKERS:
                _workers.popitem(last=False)
        return known


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
    found = _latest_with(known) if by_url else None
    if found is not None or mode is None:
        return found, None
    return uuid.uuid4().hex, known


def _latest_with(arguments: object) -> str | None:
    """Return the id of the latest overlay of this process that was made for ``arguments``; None if there is none."""
    with _registry:
        found = [o.id for o in _known.values() if o.worker is None and o.arguments == arguments]
    return found[-1] if found else None


def _before_fork() -> None:
    for overlay in list(_known.values()):
        overlay.is_shared = True


def _after_fork() -> None:
    global _registry
    _registry = threading.Lock()
    for overlay in list(_known.values()):
        overlay.after_fork()
        _workers[overlay.id] = overlay


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
