"""A zarr hierarchy as a source. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence

from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Listed, Names, Steps


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a hierarchy of zarr."""
    names: Sequence[Listed] | None = yield Names(probe.url)
    return Hierarchy(probe.url, listable=names is not None)
