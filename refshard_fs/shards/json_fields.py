"""Fields of small JSON documents, checked as they are taken out; errors name document and field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refshard_fs import zarrmeta
from refshard_fs.errors import ManifestError

__all__ = ["COUNTABLE", "count", "counts", "object_in", "shown"]

COUNTABLE: Final = 2**63


def shown(value: object) -> str:
    """Return ``value`` short enough for an error."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def object_in(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object that is all of ``data``."""
    try:
        found = zarrmeta.loads(data)
    except ValueError as e:
        raise ManifestError(f"{where}: its JSON is damaged: {e}") from None
    match found:
        case dict():
            return found
    raise ManifestError(f"{where}: a JSON object is needed, not {shown(found)}")


def count(doc: Mapping[str, Any], field: str, where: str, least: int = 0) -> int:
    """Return the integer ``field``, at least ``least`` and such that 63 bits hold it."""
    return _count(doc.get(field), field, where, least)


def counts(doc: Mapping[str, Any], field: str, where: str) -> tuple[int, ...]:
    """Return the list of integers ``field``."""
    match doc.get(field):
        case [*items]:
            return tuple(_count(item, field, where, 0) for item in items)
    raise ManifestError(f"{where}: its {field!r} is {shown(doc.get(field))}, no list of integers")


def _count(value: object, field: str, where: str, least: int) -> int:
    match value:
        case bool():
            pass
        case int() if least <= value < COUNTABLE:
            return value
    raise ManifestError(f"{where}: its {field!r} is {shown(value)}, no integer from {least} on")
