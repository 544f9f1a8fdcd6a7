"""Show a progress bar while a call takes longer than a second, in a terminal and in a notebook."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Final

from fsspec.callbacks import DEFAULT_CALLBACK, Callback, TqdmCallback

DELAY: Final = 1.0  # seconds before a bar appears: shorter work needs none


@contextlib.contextmanager
def show_progress(what: str, callback: Callback = DEFAULT_CALLBACK) -> Iterator[Callback]:
    """Yield ``callback``; in place of fsspec's default callback, yield one that shows a progress bar called ``what``.

    There is a bar in terminals and notebooks if tqdm (the extra `cli`) is installed. The bar appears after a second. To
    turn it off, set ``TQDM_DISABLE=1`` in the environment, or pass a callback such as
    ``fsspec.callbacks.NoOpCallback()``.
    """
    bar = _import_tqdm() if callback is DEFAULT_CALLBACK and _is_watched() else None
    if bar is None:
        yield callback
        return
    with TqdmCallback(tqdm_kwargs={"desc": what, "leave": False, "delay": DELAY}, tqdm_cls=bar) as shown:
        yield shown


def _is_watched() -> bool:
    """Return whether a user can see a bar while it moves: in a terminal, or in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") or (sys.stderr is not None and sys.stderr.isatty())


def _import_tqdm() -> Any:
    """Return tqdm's class of bars; None if tqdm is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text
        try:
            return importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            return None
