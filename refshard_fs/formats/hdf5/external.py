"""External links to objects in other files, and values in external raw files. No I/O here.

Only files in the directory of the file that names them, or below it, are used.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import ChainMap
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from refshard_fs.core.array_group import ArrayDescription, Chunks, Contiguous, Padded
from refshard_fs.core.keys import join, parent
from refshard_fs.core.model import Entry, Packed, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.structure import ExternalFiles, HDF5Object
from refshard_fs.security.policy import is_absolute, protocol_of, relative_to

MOST_TEXT: Final = 1 << 23  # characters of the paths that the external links of a file show
SHOWN: Final = 100  # characters of a name in a report: many reports may have the same name
_PHONY: Final = re.compile("phony_dim_([0-9]{1,9})")


def check_is_beside(name: str) -> None:
    """Raise ManifestError unless ``name`` lies in the directory of the file that refers to it, or below."""
    is_elsewhere = protocol_of(name) is not None or is_absolute(name) or {"..", ""} & set(name.split("/"))
    if is_elsewhere or set(name) & set("\\?#%"):
        raise ManifestError(f"{name[:SHOWN]!r} does not lie in the directory of the file that refers to it, or below")


# External links.


class ExternalLink(NamedTuple):
    """A link to the object at ``path`` in another ``file``."""

    file: str
    path: str

    def __str__(self) -> str:
        return f"it is an external link, to {self.path[:SHOWN]} in {self.file[:SHOWN]}"


class LinkedPaths:
    """The paths of objects in a file, in its order; finds those that a link shows without a look at all of them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._places = {path: place for place, path in enumerate(dict.fromkeys(paths))}
        self._sorted = sorted(self._places)

    def find(self, link: ExternalLink, place: str) -> dict[str, str]:
        """Return the paths of the objects that a link at ``place`` shows, each with its path there."""
        top = "/".join(part for part in link.path.split("/") if part not in ("", "."))  # a dot is the group itself
        found = self._sorted
        if top:
            first, last = (bisect_left(found, top + after) for after in "/0")  # 0 is the character after the slash
            found = found[first:last] + [top] * (top in self._places)
        in_order = sorted(found, key=self._places.__getitem__)
        return {path: join(place, rest) if (rest := path[len(top) :].strip("/")) else place for path in in_order}


class DimensionNames:
    """Names of dimensions in each group; an array of another file gets other names where they would contradict."""

    def __init__(self, arrays: Mapping[str, ArrayDescription]) -> None:
        self._sizes: dict[str, dict[str, int]] = {}
        self._phony: dict[tuple[str, int], list[str]] = {}  # names by group and size
        self._count = 0  # number of phony dimensions in all groups: groups below may use a name
        for path, array in arrays.items():
            group = parent(path)[0]
            for name, size in zip(array.dimensions, array.shape, strict=True):
                number = _PHONY.fullmatch(name)
                self._count = max(self._count, int(number[1]) + 1 if number else 0)
                self._add(group, name, size)

    def _add(self, group: str, name: str, size: int) -> None:
        own = self._sizes.setdefault(group, {})
        if name not in own and _PHONY.fullmatch(name):
            self._phony.setdefault((group, size), []).append(name)
        own[name] = size

    def move(self, array: ArrayDescription, path: str) -> ArrayDescription:
        """Return an array of another file as it is shown at ``path``."""
        group = parent(path)[0]
        self._sizes.setdefault(group, {})
        visible = ChainMap(*[self._sizes.get(part, {}) for part in ("", *accumulate(group.split("/"), join))][::-1])
        names: list[str] = []
        for name, size in zip(array.dimensions, array.shape, strict=True):
            known = visible.get(name)
            if known != size and (known is not None or _PHONY.fullmatch(name)):
                alike = [other for other in self._phony.get((group, size), []) if other not in names]
                name = alike[0] if alike else f"phony_dim_{self._count}"
                self._count += not alike
            self._add(group, name, size)
            names.append(name)
        return msgspec.structs.replace(array, where=path, dimensions=names)


# External raw files.


def resolve_files(found: HDF5Object, directory: str | None) -> HDF5Object:
    """Return a dataset; if its values lie in external files, with the URLs of these instead of names."""
    if not isinstance(found.layout, ExternalFiles):
        return found
    try:
        if directory is None:
            raise ManifestError("files beside this one cannot be opened here")
        for part in found.layout.parts:
            check_is_beside(part.file)
    except ManifestError as e:
        raise ManifestError(f"its values lie in external files: {e}") from None
    parts = tuple(part._replace(file=relative_to(directory, part.file)) for part in found.layout.parts)
    return msgspec.structs.replace(found, layout=ExternalFiles(parts))


class ExternalPieces(Chunks):
    """The pieces of an array whose bytes lie in parts of files, one part after the other."""

    def __init__(
        self, layout: ExternalFiles, shape: tuple[int, ...], chunk: tuple[int, ...], itemsize: int, where: str
    ) -> None:
        self._parts = layout.parts
        room = Span("", 0, sum(part.size for part in layout.parts))
        self._pieces = Contiguous(room, 0, shape, chunk, itemsize, where)

    def entry(self, number: int) -> Steps[Entry | None]:
        piece = yield from self._pieces.entry(number)
        assert piece is not None
        start, size = self._pieces.place(number)
        spans: list[Span] = []
        begin = 0  # position of a part in the bytes of all parts
        for part in self._parts:
            first, last = max(start, begin), min(start + size, begin + part.size)
            if first < last:
                spans.append(Span(part.file, part.offset + first - begin, part.offset + last - begin))
            begin += part.size
        if len(spans) == 1 and isinstance(piece, Span):
            return spans[0]
        return Packed(spans[0], Padded(piece.size or 0), piece.size, parts=tuple(spans)) if spans else None
