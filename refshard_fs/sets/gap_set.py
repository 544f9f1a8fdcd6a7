"""Sets without chunks, which stand for gaps. No I/O here."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy.typing as npt

from refshard_fs.core.columns import Texts
from refshard_fs.core.keys import join
from refshard_fs.errors import ManifestError
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.sets.changed_set import ChangedSet
from refshard_fs.sets.variables import NamedSet, Variable


def make_extent(variable: Variable, values: npt.NDArray[Any], like: NamedSet, name: str) -> NamedSet:
    """Return a set with only a coordinate: ``variable`` with other ``values``, and the attributes as in ``like``."""
    changed = ChangedSet(NamedSet(name, ReferenceSet(Texts.of([]), {}, {}), {}))
    changed.put_values(variable, values, like.refs.side.get(join(variable.path, ".zattrs")))
    return changed.finish()


def make_gap(
    like: NamedSet, dim: str, name: str, length: int, extent: NamedSet | None, *, with_others: bool = False
) -> NamedSet:
    """Return a set of this ``length`` for a gap: the arrays of ``like`` along ``dim``, without chunks.

    The coordinate has the values in the set ``extent``; without ``extent``, it has no chunks either. ``with_others``
    keeps the arrays without ``dim``, too.
    """
    stored = None if extent is None else extent.find_coordinate(dim)
    values = None if extent is None or stored is None else extent.decode_values(stored.path)
    empty = NamedSet(name, ReferenceSet(Texts.of([]), {}, {}), {}, units=like.units)
    changed = ChangedSet(msgspec.structs.replace(like, name=name) if with_others else empty)
    for path in like.find_axes(dim):
        variable = like.variables[path]
        if extent is None or not variable.is_coordinate:
            changed.put_empty(like, path, dim, length)
        elif values is not None:
            changed.put_values(variable, values, like.refs.side.get(join(path, ".zattrs")))
    if extent is not None and stored is not None and values is None:  # text, in chunks of any kind
        path = stored.path
        changed.put(
            stored, stored.meta.raw, extent.refs.side.get(join(path, ".zattrs")), extent.find_inline_chunks(path)
        )
        if len(extent.refs.tables[path]):
            raise ManifestError(f"the values of {path!r} at {extent.name} are not known: their chunks were not read")
    return changed.finish()
