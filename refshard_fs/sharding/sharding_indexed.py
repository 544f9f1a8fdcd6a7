"""Recognise arrays with zarr v3's ``sharding_indexed`` codec, nested to any depth. No I/O here.

Specification: zarr-specs, codecs/sharding-indexed. Inner chunks can be read in ranges if the only other codecs are
``transpose``, before the sharding codec, and ``crc32c``, after it, and if the index is not compressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from refshard_fs.core import checksums as crc32c
from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.sharding.index import OffsetsLevel, count_slots
from refshard_fs.sharding.layout import Coords, Cut, Equal, Nest, Ragged, ShardFormat, ShardLayout, Unsharded

_NAME = "sharding_indexed"
_MAX_CHUNKS = 2**63  # an array has fewer chunks, because their numbers are signed 64-bit integers
_MAX_RAGGED = 1 << 20  # the most shards of various sizes along one dimension

T = TypeVar("T")


def unshard(doc: Mapping[str, Any], options: Mapping[str, Any]) -> Unsharded | None:
    """Return the array with metadata ``doc`` as an array of innermost chunks; None if it has no sharding codec."""
    match doc:
        case {"zarr_format": 3, "codecs": [*codecs]} if _find_sharding(codecs) is not None:
            meta = zarrmeta.array_meta(doc, "its metadata")
        case _:
            return None
    transformed = zarrmeta.find_transformer_problem(doc)
    if transformed is not None:
        return Unsharded(None, doc, transformed)
    if meta is None or meta.grid is None:
        found = " and ".join(zarrmeta.shorten(doc.get(name)) for name in ("chunk_grid", "chunk_key_encoding"))
        return Unsharded(None, doc, f"expected a known chunk_grid and chunk_key_encoding, found {found}")
    levels, innermost, reason = _parse_levels(codecs, len(meta.shape))
    if not levels:
        return Unsharded(None, doc, reason)
    inner = levels[-1].chunk_shape
    cuts = _divide_grid(doc["chunk_grid"], inner)
    shards = tuple(cut.length for cut in cuts if isinstance(cut, Equal))
    grid = ChunkGrid.regular(meta.shape, inner, meta.grid.encoding)
    if grid.size >= _MAX_CHUNKS:
        raise ValueError(
            f"expected fewer than 2**63 chunks: its shape is {list(meta.shape)}, in chunks of {list(inner)}"
        )
    if len(shards) == len(cuts):
        grid = msgspec.structs.replace(grid, shards=shards)
    nests = [
        Nest(_divide(level.chunk_shape, inner), level.axes, partial(_set_slots, level.offsets)) for level in levels
    ]
    count_slots(_find_largest(cuts, nests[0].part))
    for outer, nest in pairwise(nests):
        count_slots(_divide(outer.part, nest.part))
    chunk_grid = {"name": "regular", "configuration": {"chunk_shape": list(inner)}}
    shown = {**doc, "chunk_grid": chunk_grid, "codecs": innermost}
    reason = reason and f"its inner chunks are shards themselves: {reason}"
    return Unsharded(ShardLayout(grid, cuts, nests), shown, reason)


class _Level(NamedTuple):
    """A level of shards whose chunks have ``chunk_shape``, along the array's dimensions.

    Slots are in C order of the dimensions ``axes``. ``offsets`` is the kind of index.
    """

    chunk_shape: Coords
    axes: Coords
    offsets: OffsetsLevel


class _OpaqueShard(ValueError):
    """Inner chunks cannot be read in ranges; the text names the codec that prevents it."""


def _parse_levels(codecs: list[Any], ndim: int) -> tuple[list[_Level], list[Any], str | None]:
    """Return the levels of shards, outermost first; the codecs of the innermost chunks; and a reason, or None.

    The reason says why the innermost chunks, if they are shards themselves, cannot be read in ranges.
    """
    levels: list[_Level] = []
    transposes: list[Any] = []
    axes = tuple(range(ndim))
    while (at := _find_sharding(codecs)) is not None:
        try:
            axes = _permute_axes(codecs[:at], axes)
            trailer = _find_trailer_size(codecs[at + 1 :])
            configuration = _convert(_parse_codec(codecs[at]).configuration, _Configuration)
            index = _make_index(configuration, trailer)
        except _OpaqueShard as e:
            return levels, [*transposes, *codecs], str(e)
        if len(configuration.chunk_shape) != ndim:
            found = len(configuration.chunk_shape)
            raise ValueError(f"expected an inner chunk_shape of {ndim} dimensions, as its shape, found {found}")
        by_axis = dict(zip(axes, configuration.chunk_shape, strict=True))
        levels.append(_Level(tuple(by_axis[axis] for axis in range(ndim)), axes, index))
        transposes += codecs[:at]
        codecs = configuration.codecs
    return levels, [*transposes, *codecs], None


class _Codec(msgspec.Struct, frozen=True):
    name: str
    configuration: dict[str, Any] = {}


class _Configuration(msgspec.Struct, frozen=True):
    """The configuration of the sharding codec."""

    chunk_shape: list[Annotated[int, Meta(ge=1, le=_MAX_CHUNKS - 1)]]
    codecs: list[Any]
    index_codecs: list[Any] = msgspec.field(default_factory=lambda: ["bytes", "crc32c"])
    index_location: Literal["start", "end"] = "end"


class _Endian(msgspec.Struct, frozen=True):
    endian: Literal["little", "big"] = "little"


def _parse_codec(spec: object) -> _Codec:
    return _Codec(spec) if isinstance(spec, str) else _convert(spec, _Codec)


def _convert(spec: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(spec, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as e:  # UnicodeEncodeError: half a surrogate pair
        raise ValueError(f"one of its codecs is invalid: {e}") from None


def _find_sharding(codecs: Sequence[Any]) -> int | None:
    return next((i for i, codec in enumerate(codecs) if _parse_codec(codec).name == _NAME), None)


def _permute_axes(before: Sequence[Any], axes: Coords) -> Coords:
    """Permute ``axes``, the array's dimensions in the shard's order, by the codecs ``before`` sharding."""
    for codec in map(_parse_codec, before):
        if codec.name != "transpose":
            raise _OpaqueShard(f"expected only the codec 'transpose' before sharding, found {codec.name!r}")
        match codec.configuration.get("order"):
            case "C":
                pass
            case "F":
                axes = axes[::-1]
            case [*order] if all(type(axis) is int for axis in order) and sorted(order) == [*range(len(axes))]:
                axes = tuple(axes[axis] for axis in order)
            case other:
                raise ValueError(f"expected a permutation of its dimensions in a transpose, found {str(other)[:100]}")
    return axes


def _find_trailer_size(after: Sequence[Any]) -> int:
    """Return the number of bytes that the codecs ``after`` sharding append; _OpaqueShard if one is not crc32c."""
    for codec in map(_parse_codec, after):
        if codec.name != "crc32c":
            raise _OpaqueShard(f"expected only the codec 'crc32c' after sharding, found {codec.name!r}")
    return crc32c.LENGTH * len(after)


def _make_index(configuration: _Configuration, trailer: int) -> OffsetsLevel:
    """Return the kind of index, with 0 slots: `_set_slots` sets their number."""
    chain = list(map(_parse_codec, configuration.index_codecs))
    names = [codec.name for codec in chain]
    if names not in (["bytes"], ["bytes", "crc32c"], ["endian"], ["endian", "crc32c"]):
        raise _OpaqueShard(
            f"its index is encoded by {', '.join(map(repr, names)) or 'no codec'}: "
            "expected 'bytes', or 'bytes' and 'crc32c'"
        )
    is_big = _convert(chain[0].configuration, _Endian).endian == "big"
    at_end = configuration.index_location == "end"
    return OffsetsLevel(slots=0, at_end=at_end, checked=len(chain) > 1, big_endian=is_big, trailer=trailer)


def _set_slots(index: OffsetsLevel, slots: int) -> OffsetsLevel:
    return msgspec.structs.replace(index, slots=slots)


def _divide_grid(spec: Mapping[str, Any], inner: Coords) -> tuple[Cut, ...]:
    """Return the division of each dimension into shards, in inner chunks; ``spec`` is a valid grid of shards."""
    configuration = spec["configuration"]
    edges = configuration["chunk_shape" if spec["name"] == "regular" else "chunk_shapes"]
    return tuple(_divide_dimension(edge, size) for edge, size in zip(edges, inner, strict=True))


def _divide_dimension(edges: Any, inner: int) -> Cut:
    if not isinstance(edges, list):
        return Equal(_divide_exactly(int(edges), inner))
    runs = [tuple(map(int, entry)) if isinstance(entry, list) else (int(entry), 1) for entry in edges]
    if sum(times for _, times in runs) > _MAX_RAGGED:
        raise ValueError(f"expected at most {_MAX_RAGGED} shards of various sizes along a dimension, found more")
    return Ragged(tuple(accumulate(_divide_exactly(size, inner) for size, times in runs for _ in range(times))))


def _find_largest(cuts: Sequence[Cut], part: Coords) -> Coords:
    """Return the most slots of a shard along each dimension; ValueError if ``part`` does not divide each shard."""
    lengths = [
        {cut.length} if isinstance(cut, Equal) else {stop - start for start, stop in pairwise((0, *cut.ends))}
        for cut in cuts
    ]
    return tuple(
        max(_divide_exactly(length, inner) for length in different)
        for different, inner in zip(lengths, part, strict=True)
    )


def _divide(outer: Coords, inner: Coords) -> Coords:
    return tuple(map(_divide_exactly, outer, inner))


def _divide_exactly(outer: int, inner: int) -> int:
    if outer <= 0 or outer % inner:
        raise ValueError(
            f"expected shards of whole chunks, found shards of {outer} and chunks of {inner} in a dimension"
        )
    return outer // inner


SHARD_FORMAT = ShardFormat(name=_NAME, marks=(_NAME.encode(),), unshard=unshard)
