"""Bring keys to their normal form, and convert between chunk keys and numbers in an array's grid. No I/O here."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from operator import lt
from typing import Final, Literal

import msgspec

MOST_STEPS: Final = 100  # the most segments of a key, which bounds recursion through directories
MOST_CHARACTERS: Final = 4096  # the most characters of a key; names of files are shorter
_RUNS = re.compile(r"/{2,}")
# Coordinates by their text: faster than int(), which also accepts text that is not in keys, such as "+1" or "01".
_SMALL = {str(number): number for number in range(2048)}


def normalise(path: str) -> str:
    """Convert ``path`` to a logical zarr path (zarr v2 spec): without protocol, outer slashes and double slashes."""
    if "://" in path:
        path = path.partition("://")[2]
    if "\\" in path:
        path = path.replace("\\", "/")
    if "//" in path:
        path = _RUNS.sub("/", path)
    return path.strip("/")


def check_key(key: str) -> str:
    """Return ``key`` if it is valid; else raise ValueError with the reason."""
    steps = key.split("/")
    if not {"", ".", ".."}.isdisjoint(steps):
        wrong = next(step for step in steps if step in ("", ".", ".."))
        raise ValueError(f"it is not a valid key: expected names with '/' between them, found the name {wrong!r}")
    if "\0" in key or "\\" in key:
        raise ValueError("it is not a valid key: expected names without NUL and backslash, found one of these")
    if len(steps) > MOST_STEPS or len(key) > MOST_CHARACTERS:
        raise ValueError(
            f"it is not a valid key: expected at most {MOST_STEPS} names and {MOST_CHARACTERS} characters, found "
            f"{len(steps)} and {len(key)}"
        )
    return key


def is_key(key: str) -> bool:
    """Return whether `check_key` accepts ``key``."""
    try:
        return bool(check_key(key))
    except ValueError:
        return False


def join(prefix: str, name: str) -> str:
    """Return ``name`` below ``prefix``; the root prefix is empty."""
    return f"{prefix}/{name}" if prefix and name else prefix or name


def parent(key: str) -> tuple[str, str]:
    """Split a normal key into its directory (empty: root) and its name."""
    head, _, name = key.rpartition("/")
    return head, name


def iterate_splits(key: str) -> Iterator[tuple[str, str]]:
    """Yield each directory that contains ``key``, from the nearest to the root, with the key relative to it."""
    end = key.rfind("/")
    while end > 0:
        yield key[:end], key[end + 1 :]
        end = key.rfind("/", 0, end)
    if key:
        yield "", key


def find_nearest(key: str, paths: Container[str]) -> str | None:
    """Return the nearest directory in ``paths`` that contains ``key``; None if there is none."""
    return next((path for path, _ in iterate_splits(key) if path in paths), None)


def make_relative(key: str, path: str) -> str:
    """Return ``key`` relative to ``path``, a directory that contains it; the root is ""."""
    return key[len(path) + 1 :] if path else key


def is_number(text: str) -> bool:
    """Return whether ``text`` is a coordinate in a chunk key: at most 19 digits, without leading zeros."""
    return text.isascii() and text.isdigit() and len(text) < 20 and (text[0] != "0" or text == "0")


def is_within(key: str, prefix: str) -> bool:
    """Return whether ``key`` is ``prefix`` or lies below it."""
    return not prefix or key == prefix or key.startswith(prefix + "/")


def add_to_tree(tree: dict[str, dict[str, bool]], path: str, *, is_directory: bool = False) -> None:
    """Add ``path`` and its directories to ``tree``: ``tree[directory][name]`` is whether the name is a directory."""
    while path:
        directory, name = parent(path)
        below = tree.setdefault(directory, {})
        known = below.get(name)
        if known or known == is_directory:
            return
        below[name] = is_directory
        path, is_directory = directory, True


class ChunkKeyEncoding(msgspec.Struct, frozen=True):
    """The encoding of chunk keys: zarr v3's ``chunk_key_encoding``; arrays of version 2 have ``v2``."""

    name: Literal["default", "v2"]
    separator: str

    def encode(self, coords: Sequence[int]) -> str:
        """Return the chunk key, relative to its array, of ``coords`` (one int per dimension)."""
        if self.name == "default":
            return self.separator.join(["c", *map(str, coords)])
        return self.separator.join(map(str, coords)) if coords else "0"

    def decode(self, tail: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates in ``tail``, a key relative to its array; None if it is not a chunk key.

        ``ndim`` is the number of dimensions.
        """
        parts = tail.split(self.separator)
        if self.name == "default":
            if parts[0] != "c":
                return None
            del parts[0]
        elif ndim == 0:
            return () if tail == "0" else None
        if len(parts) != ndim:
            return None
        try:
            return tuple(map(_SMALL.__getitem__, parts))
        except KeyError:
            return _parse_large(parts)


def _parse_large(parts: list[str]) -> tuple[int, ...] | None:
    """Return the coordinates in ``parts``, of any size; None if a part is not written as in chunk keys."""
    try:
        coords = tuple(map(int, parts))
    except ValueError:
        return None
    # int() also accepts signs, spaces, leading zeros and other digits.
    return coords if list(map(str, coords)) == parts and min(coords, default=0) >= 0 else None


class ChunkDirectory(msgspec.Struct, frozen=True):
    """A directory of the chunk keys of ``grid``, as if all chunks existed.

    If it is a leaf, its children are the chunks ``numbers``. Otherwise its children are directories of ``numbers.step``
    chunks each, and ``numbers`` has the first chunk of each child.
    """

    grid: ChunkGrid
    path: str
    numbers: range
    is_leaf: bool

    def name_child(self, number: int) -> str:
        """Return the name of the child that is, or contains, chunk ``number``."""
        if not self.grid.is_nested:
            return self.grid.tail(number)
        if not self.path and self.grid.encoding.name == "default":
            return "c"
        return str((number - self.numbers.start) // self.numbers.step)


class ChunkGrid(msgspec.Struct, frozen=True):
    """The chunks of one array: their count along each dimension, and the encoding of their keys.

    A chunk's *number* is its position in C order. Keys are relative to the array. If chunks lie in shards, ``shards``
    is the number of chunks of a shard along each dimension.
    """

    counts: tuple[int, ...]
    encoding: ChunkKeyEncoding
    shards: tuple[int, ...] = ()

    @classmethod
    def regular(cls, shape: Iterable[int], chunks: Iterable[int], encoding: ChunkKeyEncoding) -> ChunkGrid:
        """Return the grid of an array of ``shape`` cut into equal ``chunks`` (elements per dimension)."""
        return cls(tuple(-(-s // c) if c else 0 for s, c in zip(shape, chunks, strict=True)), encoding)

    @property
    def size(self) -> int:
        """The number of chunks."""
        return math.prod(self.counts)

    def number(self, tail: str) -> int | None:
        """Return the number of the chunk with the key ``tail``, or None if the grid has no such chunk."""
        encoding, counts = self.encoding, self.counts
        parts = tail.split(encoding.separator)
        if encoding.name == "default":
            if parts.pop(0) != "c":
                return None
        elif not counts:
            return 0 if tail == "0" else None
        if len(parts) != len(counts):
            return None
        number = 0
        for part, count in zip(parts, counts):  # noqa: B905  # the comparison above costs half as much as strict=True
            coord = _SMALL.get(part)
            if coord is None:
                coords = encoding.decode(tail, len(counts))
                return None if coords is None else self.number_of(coords)
            if coord >= count:
                return None
            number = number * count + coord
        return number

    def number_of(self, coords: Sequence[int]) -> int | None:
        """Return the number of the chunk at ``coords``, or None if they lie outside of the grid."""
        number = 0
        if len(coords) != len(self.counts):
            raise ValueError(f"expected {len(self.counts)} coordinates, got {coords}")
        for coord, count in zip(coords, self.counts):  # noqa: B905  # the comparison above costs half as much as strict=True
            if not 0 <= coord < count:
                return None
            number = number * count + coord
        return number

    def decode(self, tail: str) -> tuple[int, ...] | None:
        """Return the coordinates in ``tail``, which may lie outside of the grid; None if it is not a chunk key."""
        return self.encoding.decode(tail, len(self.counts))

    @property
    def is_nested(self) -> bool:
        """Whether a chunk's directory depends on its coordinates."""
        return self.encoding.separator == "/" and len(self.counts) > (self.encoding.name == "v2")

    def parse_leading(self, path: str) -> tuple[int, ...] | None:
        """Return the leading coordinates that all chunks in the directory ``path`` of the array have in common.

        They may lie outside of the grid. Return None if the directory cannot contain chunks, or contains them only in
        a directory ``c``.
        """
        if not self.is_nested:
            return None if path else ()
        parts = path.split("/") if path else []
        if self.encoding.name == "default":
            if not parts or parts.pop(0) != "c":
                return None
        if len(parts) >= len(self.counts) or not all(map(is_number, parts)):
            return None
        return tuple(map(int, parts))

    def directory_of(self, leading: Sequence[int]) -> str:
        """Return the directory, relative to the array, of the chunks whose coordinates begin with ``leading``."""
        if not self.is_nested:
            return ""
        return "/".join([*(["c"] if self.encoding.name == "default" else []), *map(str, leading)])

    def find_directory(self, path: str) -> ChunkDirectory | None:
        """Return the directory ``path`` of the array; None if no chunk of the grid lies in it."""
        leading = self.parse_leading(path)
        if leading is None:
            is_array = not path and self.size
            return ChunkDirectory(self, path, range(0, self.size, self.size), False) if is_array else None
        depth = len(leading)
        first = self.number_of([*leading, *[0] * (len(self.counts) - depth)])
        if first is None:
            return None
        if not self.is_nested:
            return ChunkDirectory(self, path, range(self.size), True)
        below = math.prod(self.counts[depth + 1 :])
        numbers = range(first, first + self.counts[depth] * below, below)
        return ChunkDirectory(self, path, numbers, depth == len(self.counts) - 1)

    def has_name(self, name: str, *, is_directory: bool) -> bool:
        """Return whether ``name``, directly below the array, is a chunk key, or a directory of chunk keys."""
        if is_directory:
            return self.is_nested and self.parse_leading(name) is not None
        return self.encoding.decode(name, len(self.counts)) is not None

    def contains(self, coords: Sequence[int]) -> bool:
        """Return whether ``coords`` lie in the grid; they must not be negative."""
        return all(map(lt, coords, self.counts))

    def coords(self, number: int) -> tuple[int, ...]:
        """Return the coordinates of chunk ``number``."""
        if not number:  # most coordinate arrays have one chunk
            return (0,) * len(self.counts)
        out = []
        for count in reversed(self.counts):
            number, coord = divmod(number, count)
            out.append(coord)
        return tuple(reversed(out))

    def tail(self, number: int) -> str:
        """Return the key, relative to the array, of chunk ``number``."""
        return self.encoding.encode(self.coords(number))

    def tails(self) -> Iterator[str]:
        """Yield the keys of all chunks, relative to the array, in C order; each key is made when it is needed."""
        return map(self.tail, range(self.size))
