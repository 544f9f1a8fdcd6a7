"""Keys: their normal form, and the grid of chunks that the keys of an array name. No I/O here."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from operator import lt
from typing import Final, Literal

import msgspec

MOST_STEPS: Final = 100  # segments of a key, which is as deep as anybody walks through a tree
MOST_CHARACTERS: Final = 4096  # of a key; the names of files are shorter
_RUNS = re.compile(r"/{2,}")
# Coordinates by their spelling: faster than int(), which also takes spellings that are in no key.
_SMALL = {str(number): number for number in range(2048)}


def normalise(path: str) -> str:
    """Return ``path`` as a logical zarr path (zarr v2 spec): no protocol, no outer or doubled slashes."""
    if "://" in path:
        path = path.partition("://")[2]
    if "\\" in path:
        path = path.replace("\\", "/")
    if "//" in path:
        path = _RUNS.sub("/", path)
    return path.strip("/")


def check_key(key: str) -> str:
    """Return ``key``; ValueError, which says why, if no source can have such a key."""
    steps = key.split("/")
    if not {"", ".", ".."}.isdisjoint(steps):
        raise ValueError("it is no key: it is empty, or has a segment that is empty, '.' or '..'")
    if "\0" in key or "\\" in key:
        raise ValueError("it is no key: it has a NUL or a backslash")
    if len(steps) > MOST_STEPS or len(key) > MOST_CHARACTERS:
        raise ValueError(f"it is no key: it has more than {MOST_STEPS} segments or {MOST_CHARACTERS} characters")
    return key


def is_key(key: str) -> bool:
    """Whether `check_key` accepts ``key``."""
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


def splits(key: str) -> Iterator[tuple[str, str]]:
    """Yield each directory that ``key`` lies in, the nearest first and the root last, and the rest of the key."""
    end = key.rfind("/")
    while end > 0:
        yield key[:end], key[end + 1 :]
        end = key.rfind("/", 0, end)
    if key:
        yield "", key


def nearest(key: str, paths: Container[str]) -> str | None:
    """Return the nearest of the directories ``paths`` that ``key`` lies in; None if it lies in none of them."""
    return next((path for path, _ in splits(key) if path in paths), None)


def relative(key: str, path: str) -> str:
    """Return ``key`` relative to ``path``, which it lies below; the root is empty."""
    return key[len(path) + 1 :] if path else key


def is_number(text: str) -> bool:
    """Whether ``text`` is a coordinate as keys spell it: digits without leading zeros, of at most 64 bits."""
    return text.isascii() and text.isdigit() and len(text) < 20 and (text[0] != "0" or text == "0")


def is_within(key: str, prefix: str) -> bool:
    """Whether ``key`` is ``prefix`` or lies below it; a prefix ends at a slash."""
    return not prefix or key == prefix or key.startswith(prefix + "/")


def add_to_tree(tree: dict[str, dict[str, bool]], path: str, *, is_directory: bool = False) -> None:
    """Add ``path`` and its directories to ``tree``: directory → name → whether that is a directory, too."""
    while path:
        directory, name = parent(path)
        below = tree.setdefault(directory, {})
        known = below.get(name)
        if known or known == is_directory:
            return
        below[name] = is_directory
        path, is_directory = directory, True


class ChunkKeyEncoding(msgspec.Struct, frozen=True):
    """How chunk keys are spelled: zarr v3's ``chunk_key_encoding``; arrays of version 2 have ``v2``."""

    name: Literal["default", "v2"]
    separator: str

    def encode(self, coords: Sequence[int]) -> str:
        """Return the chunk key, relative to its array, of ``coords`` (one int per dimension)."""
        if self.name == "default":
            return self.separator.join(["c", *map(str, coords)])
        return self.separator.join(map(str, coords)) if coords else "0"

    def decode(self, tail: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates spelled by ``tail``, or None if it is no chunk key of ``ndim`` dimensions."""
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
            return _large(parts)


def _large(parts: list[str]) -> tuple[int, ...] | None:
    """Return the coordinates spelled by ``parts``, of any size; None if they are spelled otherwise than in keys."""
    try:
        coords = tuple(map(int, parts))
    except ValueError:
        return None
    # int() also takes signs, spaces, leading zeros and other digits.
    return coords if list(map(str, coords)) == parts and min(coords, default=0) >= 0 else None


class ChunkDirectory(msgspec.Struct, frozen=True):
    """A directory of the chunk keys of ``grid``, as if all of its chunks existed.

    If it is a leaf, its children are the chunks ``numbers``. Otherwise they are directories, ``numbers`` has the first
    chunk in each of them, and ``numbers.step`` chunks lie in each.
    """

    grid: ChunkGrid
    path: str
    numbers: range
    is_leaf: bool

    def child(self, number: int) -> str:
        """Return the name of the child that is chunk ``number``, or has it in it."""
        if not self.grid.is_nested:
            return self.grid.tail(number)
        if not self.path and self.grid.encoding.name == "default":
            return "c"
        return str((number - self.numbers.start) // self.numbers.step)


class ChunkGrid(msgspec.Struct, frozen=True):
    """The chunks of one array: how many along each dimension, and how their keys are spelled.

    A chunk's *number* is its place in C order. Keys are relative to the array. If boxes of chunks lie together in
    shards, ``shards`` is the number of chunks along each dimension of a box.
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
        """Number of chunks."""
        return math.prod(self.counts)

    def number(self, tail: str) -> int | None:
        """Return the number of the chunk keyed ``tail``, or None if it is no chunk of this grid."""
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
        for part, count in zip(parts, counts):  # noqa: B905  # checked above, at half the cost
            coord = _SMALL.get(part)
            if coord is None:
                coords = encoding.decode(tail, len(counts))
                return None if coords is None else self.number_of(coords)
            if coord >= count:
                return None
            number = number * count + coord
        return number

    def number_of(self, coords: Sequence[int]) -> int | None:
        """Return the number of the chunk at ``coords``, or None if they lie outside."""
        number = 0
        if len(coords) != len(self.counts):
            raise ValueError(f"{coords} are no coordinates in {len(self.counts)} dimensions")
        for coord, count in zip(coords, self.counts):  # noqa: B905  # checked above, at half the cost
            if not 0 <= coord < count:
                return None
            number = number * count + coord
        return number

    def decode(self, tail: str) -> tuple[int, ...] | None:
        """Return the coordinates that ``tail`` spells, even outside of the grid; None if it is no chunk key."""
        return self.encoding.decode(tail, len(self.counts))

    @property
    def is_nested(self) -> bool:
        """Whether the directory that a chunk lies in depends on its coordinates."""
        return self.encoding.separator == "/" and len(self.counts) > (self.encoding.name == "v2")

    def leading(self, path: str) -> tuple[int, ...] | None:
        """Return the coordinates with which those of all chunks in the directory ``path`` of the array begin.

        They may lie outside of the grid. None if no chunk key is in that directory, or all are in its directory ``c``.
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

    def directory(self, path: str) -> ChunkDirectory | None:
        """Return what lies in the directory ``path`` of the array; None if no chunk of the grid does."""
        leading = self.leading(path)
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
        """Whether ``name``, directly below the array, is a chunk key, or a directory of chunk keys."""
        if is_directory:
            return self.is_nested and self.leading(name) is not None
        return self.encoding.decode(name, len(self.counts)) is not None

    def contains(self, coords: Sequence[int]) -> bool:
        """Whether ``coords``, none of which is negative, lie in the grid."""
        return all(map(lt, coords, self.counts))

    def coords(self, number: int) -> tuple[int, ...]:
        """Return the coordinates of chunk ``number``."""
        out = []
        for count in reversed(self.counts):
            number, coord = divmod(number, count)
            out.append(coord)
        return tuple(reversed(out))

    def tail(self, number: int) -> str:
        """Return the key, relative to the array, of chunk ``number``."""
        return self.encoding.encode(self.coords(number))

    def tails(self) -> Iterator[str]:
        """Yield the relative keys of all chunks in C order, without building them all."""
        return map(self.tail, range(self.size))
