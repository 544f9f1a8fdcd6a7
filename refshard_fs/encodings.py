"""What metadata says of how an array's chunks are encoded, and whether any reader can follow that. No I/O here."""

from __future__ import annotations

from typing import Any, Final

from refshard_fs.zarrmeta import ArrayMeta, dumps, is_divided

__all__ = ["check_blosc", "codecs_of", "is_blosc", "lost", "names_codecs", "undecodable", "unsafe"]

_CODECS: Final = ("codecs", "compressor", "filters")
_PICKLES: Final = frozenset(["pickle", "numcodecs.pickle"])

# Stands where codecs do, for that is what readers name in their error. VirtualiZarr 1.0.0 writes version 2's filters
# there, or null, and leaves compressor, order and (mostly) the fill value out: what chunks hold cannot be told.
_LOST: Final = (
    "none that is known: its writer (VirtualiZarr 1.0.0?) left out how the chunks of array %r are encoded; "
    "if you know it, put codecs and fill_value into its zarr.json"
)
_UNKNOWN: Final = "?"


def lost(path: str) -> dict[str, Any]:
    """Return the codec that stands for those that the writer of the array ``path`` left out."""
    return {"name": _LOST % path}


def names_codecs(codecs: object) -> bool:
    """Whether ``codecs`` are what version 3 of zarr calls so; null, or what version 2 calls filters, is not."""
    match codecs:
        case [_, *_]:
            return all(isinstance(codec.get("name") if isinstance(codec, dict) else codec, str) for codec in codecs)
    return False


def undecodable(meta: ArrayMeta, path: str) -> str | None:
    """Return why nobody can know how the chunks of the array ``path`` are encoded; None where its metadata says it."""
    if meta.zarr_format == 3:
        codecs = meta.raw.get("codecs")
        if codecs == [lost(path)]:
            return f"its codecs are {_LOST % path}"
        return None if names_codecs(codecs) else f"its codecs are {_spelled(codecs)}, no list of codecs with names"
    for member, given in (("compressor", [meta.raw.get("compressor")]), ("filters", meta.raw.get("filters") or [])):
        if not isinstance(given, list) or not all(_is_codec_2(codec) for codec in given if codec is not None):
            return f"its member '{member}' is {_spelled(meta.raw[member])}, which names no codec"
    return None


def unsafe(meta: ArrayMeta) -> str | None:
    """Return why the chunks of an array must not be decoded here, whoever wrote its metadata; None if they may be."""
    pending = [meta.raw.get(member) for member in _CODECS]
    while pending:
        match pending.pop():
            case str(text) if is_divided(text):
                return f"its codecs have a type that numpy may end the process over: {text[:100]!r}"
            case {**members}:
                if not _PICKLES.isdisjoint(name for name in (members.get("id"), members.get("name")) if _is_str(name)):
                    return "its chunks are pickles, which may run code: they are never read"
                pending += members.values()
            case [*items]:
                pending += items
    return None


def is_blosc(meta: ArrayMeta) -> bool:
    """Whether the last codec that encodes an array's chunks is blosc."""
    codecs = meta.raw.get("codecs") if meta.zarr_format == 3 else [meta.raw.get("compressor")]
    match codecs:
        case [*_, {"id": "blosc"} | {"name": "blosc"}]:
            return True
    return False


def check_blosc(data: bytes) -> None:
    """Raise ValueError where a frame of blosc says that it is longer than ``data``: blosc reads on behind their end."""
    said = int.from_bytes(data[12:16], "little")
    if len(data) < 16 or said > len(data):
        raise ValueError(f"it is a frame of {max(said, 16)} bytes, and {len(data)} are there")


def codecs_of(meta: ArrayMeta) -> tuple[str, ...]:
    """Return the names of an array's codecs, in the order in which they encode; what shards hold in brackets."""
    if meta.zarr_format == 3:
        return tuple(map(_named, _listed(meta.raw.get("codecs"))))
    last = meta.raw.get("compressor")
    return tuple(map(_named, [*_listed(meta.raw.get("filters") or []), *([] if last is None else [last])]))


def _spelled(value: Any) -> str:
    return dumps(value).decode()[:100]


def _listed(codecs: Any) -> list[Any]:
    return codecs if isinstance(codecs, list) else [codecs]


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _is_codec_2(codec: object) -> bool:
    return isinstance(codec, dict) and isinstance(codec.get("id"), str)


def _named(codec: Any) -> str:
    match codec:
        case {"name": "sharding_indexed", "configuration": {"codecs": [*inner]}}:
            return f"sharding_indexed[{', '.join(map(_named, inner))}]"
        case {"name": str(name), "configuration": {"cname": str(kind)}} | {"id": str(name), "cname": str(kind)}:
            return f"{name}({kind})"
        case {"name": str(name)} | {"id": str(name)} | str(name):
            return _UNKNOWN if " " in name else name  # see `lost`
    return _UNKNOWN
