"""Sets shown as a function of the user's selects of each, when they are joined and never later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from refshard_fs.errors import RefShardError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.sets.rebase import open_read
from refshard_fs.sets.sources import TOGETHER

Preprocess = Callable[[RefShardFileSystem], RefShardFileSystem]


def name_of(function: Preprocess) -> str:
    """Return the import path of a function, for people; ValueError for one without a name.

    >>> name_of(open_read)
    'refshard_fs.sets.rebase:open_read'
    """
    name = getattr(function, "__qualname__", "<none>")
    if "<lambda>" in name or "<none>" in name:
        raise ValueError(f"preprocess={function!r}: expected a function with a name, which documents record")
    return f"{function.__module__}:{name}"


def preprocessed(sets: Sequence[Any], options: Mapping[str, Any], function: Preprocess) -> tuple[Any, ...]:
    """Return the filesystem of each set as ``function`` shows it; a set that cannot be opened is returned as it is."""
    name = name_of(function)

    def process(fo: Any) -> Any:
        try:
            source = open_read(fo, options)
            source.source.open()
        except (RefShardError, FileNotFoundError):
            return fo  # the reader of sets says why
        shown = function(source)
        if getattr(shown, "fo", None) != source.fo:
            raise TypeError(f"{name} returned {shown!r} for {source!r}: expected what select() of that returns")
        return shown

    with ThreadPoolExecutor(TOGETHER) as pool:
        return tuple(pool.map(process, sets))
