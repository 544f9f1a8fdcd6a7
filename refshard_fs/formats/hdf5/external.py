"""External links to objects in other files, and values in external raw files. No I/O here.

A file may refer only to files in its directory, or below it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import ChainMap
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from refshard_fs.core.array_group import ArrayDescription, Chunks, Contiguous, ZeroPaddingRecipe
from refshard_fs.core.keys import join, parent
from refshard_fs.core.model import Entry, Packed, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.structure import ExternalFiles, HDF5Object
from refshard_fs.security.policy import LOCAL, directory_of, is_absolute, protocol_of, relative_to

MOST_TEXT: Final = 1 << 23  # characters of all paths that a file shows through external links
SHOWN: Final = 100  # characters of a name that a report quotes: many reports may quote the same long name
_PHONY: Final = re.compile("phony_dim_([0-9]{1,9})")


def check_file_is_beside(name: str) -> None:
    """Raise ManifestError unless ``name`` lies in the directory of the file that refers to it, or below."""
    is_elsewhere = protocol_of(name) is not None or is_absolute(name) or {"..", ""} & set(name.split("/"))
    if is_elsewhere or set(name) & set("\\?#%"):
        raise ManifestError(
            f"{name[:SHOWN]!r}: expected a relative path into the directory of the file that refers to it, or below, "
            "without '..', '\\', '?', '#' and '%'"
        )


def locate_beside(name: str, url: str) -> str:
    """Return the URL of the file ``name``, to which the HDF5 file at ``url`` refers.

    If a path is absolute, HDF5 also looks for its last name in the directory of the file that refers to it. Here, an
    absolute path is accepted if it leads into this directory; if the directory is remote, the last name counts.

    Raises ManifestError unless the file lies in this directory, or below.
    """
    directory = directory_of(url)
    if name.startswith("/"):
        protocol, folder = protocol_of(directory), directory.removeprefix("file://").rstrip("/")
        if protocol not in (None, *LOCAL):
            name = name.rpartition("/")[2]
        elif folder.startswith("/"):
            name = name.removeprefix(f"{folder}/")
    check_file_is_beside(name)
    return relative_to(directory, name)


# External links.


class ExternalLink(NamedTuple):
    """A link to the object at ``path`` in another ``file``."""

    file: str
    path: str

    def __str__(self) -> str:
        return f"it is an external link, to {self.path[:SHOWN]} in {self.file[:SHOWN]}"


class LinkedPaths:
    """The paths of objects in a file. They are also sorted, so that `find` need not compare all of them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._places = {path: position for position, path in enumerate(dict.fromkeys(paths))}
        self._sorted = sorted(self._places)

    def find(self, link: ExternalLink, link_path: str) -> dict[str, str]:
        """Return the paths of the objects to which ``link`` leads, each with the path where it is shown.

        The link itself lies at ``link_path``: the objects are shown at this path and below it.
        """
        top = "/".join(name for name in link.path.split("/") if name not in ("", "."))  # "." is the group itself
        paths = self._sorted
        if top:
            start, end = (bisect_left(paths, top + after) for after in "/0")  # "0" is the character after "/"
            paths = paths[start:end] + [top] * (top in self._places)
        in_order = sorted(paths, key=self._places.__getitem__)
        return {
            path: join(link_path, remainder) if (remainder := path[len(top) :].strip("/")) else link_path
            for path in in_order
        }


class DimensionNames:
    """Names and sizes of the dimensions in each group of the opened file.

    An array of another file keeps the name of a dimension, with two exceptions: if the opened file has a dimension of
    this name and of another size, or if it is a phony dimension that the opened file lacks.
    """

    def __init__(self, arrays: Mapping[str, ArrayDescription]) -> None:
        self._sizes: dict[str, dict[str, int]] = {}
        self._phony: dict[tuple[str, int], list[str]] = {}  # names by group and size
        self._count = 0  # number in the next phony name, for all groups: groups below may use the names, too
        for path, array in arrays.items():
            group = parent(path)[0]
            for name, size in zip(array.dimensions, array.shape, strict=True):
                number = _PHONY.fullmatch(name)
                self._count = max(self._count, int(number[1]) + 1 if number else 0)
                self._add(group, name, size)

    def _add(self, group: str, name: str, size: int) -> None:
        group_sizes = self._sizes.setdefault(group, {})
        if name not in group_sizes and _PHONY.fullmatch(name):
            self._phony.setdefault((group, size), []).append(name)
        group_sizes[name] = size

    def move_array(self, array: ArrayDescription, path: str) -> ArrayDescription:
        """Return the description of an array of another file that is shown at ``path`` of the opened file."""
        group = parent(path)[0]
        self._sizes.setdefault(group, {})
        visible = ChainMap(
            *[self._sizes.get(ancestor, {}) for ancestor in ("", *accumulate(group.split("/"), join))][::-1]
        )
        names: list[str] = []
        for name, size in zip(array.dimensions, array.shape, strict=True):
            visible_size = visible.get(name)
            if visible_size != size and (visible_size is not None or _PHONY.fullmatch(name)):
                same_size_names = [phony for phony in self._phony.get((group, size), []) if phony not in names]
                name = same_size_names[0] if same_size_names else f"phony_dim_{self._count}"
                self._count += not same_size_names
            self._add(group, name, size)
            names.append(name)
        return msgspec.structs.replace(array, where=path, dimensions=names)


# External raw files.


def resolve_files(hdf5_object: HDF5Object, directory: str | None) -> HDF5Object:
    """Replace the names of a dataset's external files by URLs; return other datasets unchanged.

    Raises ManifestError if ``directory`` is None or a file does not lie below it.
    """
    if not isinstance(hdf5_object.layout, ExternalFiles):
        return hdf5_object
    try:
        if directory is None:
            raise ManifestError("they can be read only if this file is opened by its path or URL, not as bytes")
        for part in hdf5_object.layout.parts:
            check_file_is_beside(part.file)
    except ManifestError as e:
        raise ManifestError(f"its values lie in external files: {e}") from None
    parts = tuple(part._replace(file=relative_to(directory, part.file)) for part in hdf5_object.layout.parts)
    return msgspec.structs.replace(hdf5_object, layout=ExternalFiles(parts))


class ExternalChunks(Chunks):
    """The chunks of a contiguous array whose bytes lie in parts of files, one part after the other."""

    def __init__(
        self, layout: ExternalFiles, shape: tuple[int, ...], chunk: tuple[int, ...], itemsize: int, label: str
    ) -> None:
        self._parts = layout.parts
        room = Span("", 0, sum(part.size for part in layout.parts))
        self._contiguous = Contiguous(room, 0, shape, chunk, itemsize, label)

    def find_entry(self, number: int) -> Steps[Entry | None]:
        chunk = yield from self._contiguous.find_entry(number)
        assert chunk is not None
        start, size = self._contiguous.place(number)
        spans: list[Span] = []
        begin = 0  # position of a part in the bytes of all parts
        for part in self._parts:
            first_byte, end_byte = max(start, begin), min(start + size, begin + part.size)
            if first_byte < end_byte:
                spans.append(Span(part.file, part.offset + first_byte - begin, part.offset + end_byte - begin))
            begin += part.size
        if len(spans) == 1 and isinstance(chunk, Span):
            return spans[0]
        return Packed(spans[0], ZeroPaddingRecipe(chunk.size or 0), chunk.size, parts=tuple(spans)) if spans else None
