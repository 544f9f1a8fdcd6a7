"""Files of arrays as the harnesses of their parsers open them: in memory, and a few chunks of each array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from refshard_fs.core.format import HEAD, OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts, Steps
from refshard_fs.errors import RefShardError
from tests.support.shards_in_memory import ROOT, Files


def opened(
    open_: Callable[[Probe, OpenOptions], Steps[KeySpace]], data: bytes, others: Mapping[str, bytes] | None = None
) -> tuple[Files, Any] | None:
    """Return the file ``data`` as a key space, and what runs look-ups in it; None where it is refused by an error."""
    files = Files({ROOT: data, **(others or {})})
    try:
        return files, files.run(open_(Probe(ROOT, Facts(len(data)), data[:HEAD]), OpenOptions()))
    except RefShardError:
        return None


def some_chunks(keys: Any) -> Iterator[str]:
    """Yield the keys of the first, a middle and the last chunk of each array."""
    for path, grid in keys.grids.items():
        for number in {0, grid.size // 2, grid.size - 1} if grid.size else ():
            yield f"{path}/{grid.tail(number)}"
