"""Open files of arrays in memory, and choose a few chunks of each array, for the harnesses of their parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from refshard_fs.core.format import HEAD, OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts, Steps
from refshard_fs.errors import RefShardError
from tests.support.shards_in_memory import ROOT, Files


def open_file(
    open_: Callable[[Probe, OpenOptions], Steps[KeySpace]], data: bytes, others: Mapping[str, bytes] | None = None
) -> tuple[Files, Any] | None:
    """Open the file ``data``; return the files that run look-ups, and the key space; None if opening is an error."""
    files = Files({ROOT: data, **(others or {})})
    try:
        return files, files.run(open_(Probe(ROOT, Facts(len(data)), data[:HEAD]), OpenOptions()))
    except RefShardError:
        return None


def choose_chunks(keys: Any) -> Iterator[str]:
    """Yield the keys of the first, a middle and the last chunk of each array."""
    for path, grid in keys.grids.items():
        for number in {0, grid.size // 2, grid.size - 1} if grid.size else ():
            yield f"{path}/{grid.tail(number)}"
