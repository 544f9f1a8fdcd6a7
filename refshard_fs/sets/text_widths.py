"""Give arrays of characters, the text of NetCDF files, the same number of characters in all sets. No I/O here.

The last dimension of such an array counts characters. Its name (``string5``) or its length depends on the longest text
in a file. Readers join characters to texts, and drop the dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.core.dtypes import holds_characters
from refshard_fs.cubes.placement import Placement
from refshard_fs.sets.changed_set import ChangedSet
from refshard_fs.sets.variables import NamedSet, Variable

_FILLS: Final = {2: None, 3: "AA=="}  # by zarr format: the fill_value of shorter texts, a NUL


class _Texts(NamedTuple):
    """The dimension of characters of an array: its name and length in each set; None for a set without the array."""

    names: tuple[str | None, ...]
    widths: tuple[int | None, ...]

    @property
    def width(self) -> int:
        return max(width for width in self.widths if width is not None)

    @property
    def differ(self) -> bool:
        return len({*self.names} - {None}) > 1 or len({*self.widths} - {None}) > 1


class WidenedTexts(NamedTuple):
    """Sets whose arrays of characters are equally wide.

    ``places`` has, for each set, the places of its characters, and ``unions`` the numbers of all characters, both by
    dimension.
    """

    parts: list[NamedSet]
    places: list[dict[str, Placement]]
    unions: dict[str, npt.NDArray[Any]]


def widen_texts(parts: Sequence[NamedSet], dim: str | None, only: Collection[str] | None = None) -> WidenedTexts:
    """Return ``parts`` with metadata in which texts along ``dim`` have the number of characters of the widest set.

    With ``only``, all other arrays stay as they are. Chunks are not changed.
    """
    groups: dict[_Texts, list[str]] = {}
    for path, texts in _find_texts(parts, dim):
        if only is None or path in only:
            groups.setdefault(texts, []).append(path)
    groups = {texts: paths for texts, paths in groups.items() if texts.differ}
    if not groups:
        return WidenedTexts(list(parts), [{}] * len(parts), {})
    changed = [ChangedSet(part) for part in parts]
    places: list[dict[str, Placement]] = [{} for _ in parts]
    unions: dict[str, npt.NDArray[Any]] = {}
    widened = {path for paths in groups.values() for path in paths}
    known = {d for part in parts for path, v in part.variables.items() if path not in widened for d in v.dims}
    for texts, paths in groups.items():
        names = {name for name in texts.names if name is not None}
        name = names.pop() if len(names) == 1 else f"string{texts.width}"
        while name in known:
            name = f"{name}_{texts.width}"
        known.add(name)
        for number, (part, width) in enumerate(zip(parts, texts.widths, strict=True)):
            for path in paths if width is not None else ():
                _put_widened(changed[number], part.variables[path], name, texts.width)
            if width is not None and width < texts.width:
                places[number][name] = Placement(((0, width),))
        unions[name] = np.arange(texts.width)
    return WidenedTexts([part.finish() for part in changed], places, unions)


def _find_texts(parts: Sequence[NamedSet], dim: str | None) -> Iterator[tuple[str, _Texts]]:
    """Yield the arrays of characters along ``dim``, if only arrays of characters have their last dimension."""
    of_others: set[str | None] = {dim}
    for part in parts:
        of_others.update(d for v in part.variables.values() for d in (v.dims[:-1] if _is_text(v) else v.dims))
    for path in dict.fromkeys(path for part in parts for path in part.find_axes(dim)):
        own = [part.variables.get(path) for part in parts]
        if all(v is None or (_is_text(v) and v.dims[-1] not in of_others) for v in own):
            names = tuple(None if v is None else v.dims[-1] for v in own)
            yield path, _Texts(names, tuple(None if v is None else v.meta.shape[-1] for v in own))


def _is_text(variable: Variable) -> bool:
    return holds_characters(variable.meta) and len(variable.dims) > 1 and variable.dims[-1] is not None


def _put_widened(changed: ChangedSet, variable: Variable, name: str, width: int) -> None:
    meta = variable.meta
    dims = [*variable.dims[:-1], name]
    doc: dict[str, Any] = {**meta.raw, "shape": [*meta.shape[:-1], width], "fill_value": _FILLS[meta.zarr_format]}
    chunks = [*(meta.chunks or meta.shape)[:-1], max(width, 1)]
    if meta.zarr_format == 2:
        changed.put(variable, doc | {"chunks": chunks}, {**variable.attributes, "_ARRAY_DIMENSIONS": dims})
    else:
        doc["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        changed.put(variable, doc | {"dimension_names": dims})
