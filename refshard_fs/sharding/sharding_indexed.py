"""Zarr v3 shard layout, ``sharding_indexed``: find inner chunks, nested to any depth. No I/O here.

Specification: zarr-specs, codecs/sharding-indexed. Around the shard, ``transpose`` and
``crc32c`` leave its chunks where ranges can reach them; any other codec does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from refshard_fs.core import checksums as crc32c
from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.sharding.layout import Cut, Equal, OffsetsLevel, Ragged, ShardFormat, Unsharded, slots_of
from refshard_fs.sharding.nested import Nest, NestedLayout

_NAME = "sharding_indexed"
_CHUNKS = 2**63  # of an array, all dimensions together: their numbers must fit 64 bits
_EDGES = 1 << 20  # shards of their own sizes along one dimension

_Shape = tuple[int, ...]
T = TypeVar("T")


def unshard(doc: Mapping[str, Any], options: Mapping[str, Any]) -> Unsharded | None:
    """Return the array of metadata ``doc`` with its innermost chunks as chunks; None if it has no sharding codec."""
    match doc:
        case {"zarr_format": 3, "codecs": [*codecs]} if any(_codec(codec).name == _NAME for codec in codecs):
            meta = zarrmeta.array_meta(doc, "its metadata")
        case _:
            return None
    if meta is None or meta.grid is None:
        return Unsharded(None, doc, "its chunk grid or its chunk key encoding is not known")
    chain = _unwind(codecs, len(meta.shape))
    if not chain.levels:
        return Unsharded(None, doc, chain.reason)
    inner = chain.levels[-1].chunk_shape
    cuts = _cuts(doc["chunk_grid"], inner)
    lengths = tuple(len(cut.chunks(0)) for cut in cuts if isinstance(cut, Equal))
    shards = lengths if len(lengths) == len(cuts) else ()
    grid = msgspec.structs.replace(ChunkGrid.regular(meta.shape, inner, meta.grid.encoding), shards=shards)
    if grid.size >= _CHUNKS:
        raise ValueError(f"its shape {list(meta.shape)} has more chunks of {list(inner)} than 64 bits can count")
    nests = [Nest(_divided(level.chunk_shape, inner), level.axes, _sized(level.pairs)) for level in chain.levels]
    slots_of(_largest(cuts, nests[0].part))
    for outer, nest in pairwise(nests):
        slots_of(_divided(outer.part, nest.part))
    shown = {
        **doc,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(inner)}},
        "codecs": chain.codecs,
    }
    reason = chain.reason and f"its inner chunks are shards themselves, and {chain.reason}"
    return Unsharded(NestedLayout(grid, cuts, nests), shown, reason)


class _Level(NamedTuple):
    """Chunks of ``chunk_shape``, by the array's dimensions; slots are counted along ``axes``, slowest first."""

    chunk_shape: _Shape
    axes: _Shape
    pairs: OffsetsLevel


class _Chain(NamedTuple):
    """Levels of shards, outermost first, and the codecs of their innermost chunks; why there are no more levels."""

    levels: list[_Level]
    codecs: list[Any]
    reason: str | None


class _Opaque(ValueError):
    """Ranges cannot see through a chain of codecs; the text says which one is in the way."""


def _unwind(codecs: list[Any], ndim: int) -> _Chain:
    levels: list[_Level] = []
    transposes: list[Any] = []
    axes = tuple(range(ndim))
    while (at := _place(codecs)) is not None:
        try:
            axes = _axes(codecs[:at], axes)
            trailer = _trailer(codecs[at + 1 :])
            configuration = _read(_codec(codecs[at]).configuration, _Configuration)
            index = _index(configuration, trailer)
        except _Opaque as e:
            return _Chain(levels, [*transposes, *codecs], str(e))
        if len(configuration.chunk_shape) != ndim:
            raise ValueError(f"its inner chunk_shape has {len(configuration.chunk_shape)} dimensions, its shape {ndim}")
        by_axis = dict(zip(axes, configuration.chunk_shape, strict=True))
        levels.append(_Level(tuple(by_axis[axis] for axis in range(ndim)), axes, index))
        transposes += codecs[:at]
        codecs = configuration.codecs
    return _Chain(levels, [*transposes, *codecs], None)


class _Codec(msgspec.Struct, frozen=True):
    name: str
    configuration: dict[str, Any] = {}


class _Configuration(msgspec.Struct, frozen=True):
    """The configuration of the sharding codec."""

    chunk_shape: list[Annotated[int, Meta(ge=1, le=_CHUNKS - 1)]]
    codecs: list[Any]
    index_codecs: list[Any] = msgspec.field(default_factory=lambda: ["bytes", "crc32c"])
    index_location: Literal["start", "end"] = "end"


class _Endian(msgspec.Struct, frozen=True):
    endian: Literal["little", "big"] = "little"


def _codec(spec: object) -> _Codec:
    return _Codec(spec) if isinstance(spec, str) else _read(spec, _Codec)


def _read(spec: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(spec, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as e:  # the latter of half a surrogate pair
        raise ValueError(f"one of its codecs is not as specified: {e}") from None


def _place(codecs: Sequence[Any]) -> int | None:
    return next((i for i, codec in enumerate(codecs) if _codec(codec).name == _NAME), None)


def _axes(before: Sequence[Any], axes: _Shape) -> _Shape:
    """Return which dimensions of the array a shard's are: ``axes``, as the codecs ``before`` it permute them."""
    for codec in map(_codec, before):
        if codec.name != "transpose":
            raise _Opaque(f"codec {codec.name!r} before sharding changes what shards hold")
        match codec.configuration.get("order"):
            case "C":
                pass
            case "F":
                axes = axes[::-1]
            case [*order] if all(type(axis) is int for axis in order) and sorted(order) == [*range(len(axes))]:
                axes = tuple(axes[axis] for axis in order)
            case other:
                raise ValueError(f"a transpose has the order {str(other)[:100]}, no permutation of its dimensions")
    return axes


def _trailer(after: Sequence[Any]) -> int:
    """Return how many bytes the codecs ``after`` sharding append to a shard."""
    for codec in map(_codec, after):
        if codec.name != "crc32c":
            raise _Opaque(f"codec {codec.name!r} after sharding makes shards unreadable in ranges")
    return crc32c.LENGTH * len(after)


def _index(configuration: _Configuration, trailer: int) -> OffsetsLevel:
    """Return how an index is laid out; its number of slots is left open."""
    chain = list(map(_codec, configuration.index_codecs))
    names = [codec.name for codec in chain]
    if names not in (["bytes"], ["bytes", "crc32c"], ["endian"], ["endian", "crc32c"]):
        raise _Opaque(f"its index is encoded by {', '.join(names) or 'nothing'}, and only bytes and crc32c are known")
    is_big = _read(chain[0].configuration, _Endian).endian == "big"
    at_end = configuration.index_location == "end"
    return OffsetsLevel(slots=0, at_end=at_end, checked=len(chain) > 1, big_endian=is_big, trailer=trailer)


def _sized(index: OffsetsLevel) -> Callable[[int], OffsetsLevel]:
    return lambda slots: msgspec.structs.replace(index, slots=slots)


def _cuts(spec: Mapping[str, Any], inner: _Shape) -> tuple[Cut, ...]:
    """Return how the outer grid, whose metadata is known to be sound, cuts each dimension, in inner chunks."""
    match spec:
        case {"name": "regular", "configuration": {"chunk_shape": edges}}:
            pass
        case {"configuration": {"chunk_shapes": edges}}:
            pass
    return tuple(_cut(edge, size) for edge, size in zip(edges, inner, strict=True))


def _cut(edges: Any, inner: int) -> Cut:
    match edges:
        case [*entries]:
            ends: list[int] = []
            end = 0
            for entry in entries:
                size, times = map(int, entry) if isinstance(entry, list) else (int(entry), 1)
                if len(ends) + times > _EDGES:
                    raise ValueError(f"a dimension of its grid has more than {_EDGES} shards of their own sizes")
                for _ in range(times):
                    end += _quotient(size, inner)
                    ends.append(end)
            return Ragged(tuple(ends))
    return Equal(_quotient(int(edges), inner))


def _largest(cuts: Sequence[Cut], part: _Shape) -> _Shape:
    """Return how many slots the largest shard there may be has; ValueError where parts do not divide one."""
    out = []
    for cut, inner in zip(cuts, part, strict=True):
        match cut:
            case Ragged(ends):
                lengths = {stop - start for start, stop in pairwise((0, *ends))}
            case _:
                lengths = {len(cut.chunks(0))}
        out.append(max(_quotient(length, inner) for length in lengths))
    return tuple(out)


def _divided(outer: _Shape, inner: _Shape) -> _Shape:
    return tuple(map(_quotient, outer, inner))


def _quotient(outer: int, inner: int) -> int:
    if outer <= 0 or outer % inner:
        raise ValueError(f"shards of {outer} along a dimension are not divided by chunks of {inner}")
    return outer // inner


SHARD_FORMAT = ShardFormat(name=_NAME, marks=(_NAME.encode(),), unshard=unshard)
