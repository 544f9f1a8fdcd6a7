"""Join the sources of a filesystem that is opened for several: a pattern, a list of URLs, or a table."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, Final

from refshard_fs.sets.cube import cube
from refshard_fs.source.normalizing import SESSION, resolve_source, stands_for_many
from refshard_fs.source.options import list_keywords
from refshard_fs.source.transaction import FSSPEC_ARGUMENTS

# The keywords for finding and opening the sources of a cube; all others are for the filesystem of the cube.
_OF_SOURCES: Final = frozenset(
    (
        *("allow", "concurrency", "fast_s3", "fs", "max_manifest_bytes", "max_memory", "options", "ref_storage_args"),
        *("remote_options", "remote_protocol", "retries", "target_options", "target_protocol", "timeout"),
    )
)


def join_sources(fo: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Join several sources; return the cube, and the remaining keywords for its filesystem.

    Raise ValueError if the keywords ``given`` ask for a filesystem that takes writes.
    """
    for name, default in (("mode", "r"), ("overlay", None)):
        if given.get(name, default) != default:
            raise ValueError(
                f"{name}={given[name]!r} needs a single source, got several: {reprlib.repr(fo)}. Several sources can "
                "only be read: to add to them, save the result of refshard_fs.open, and append to the saved set"
            )
    if not isinstance(given.get("concat") or {}, Mapping):
        raise TypeError(
            f"concat={given['concat']!r:.200}: expected a mapping with arguments of refshard_fs.open, such as "
            "{'dim': 'time'}"
        )
    others = given.keys() - list_keywords().keys() - FSSPEC_ARGUMENTS - {SESSION}
    for_cube = {name: given[name] for name in given if name in _OF_SOURCES or name in others}
    joined = cube(fo, **for_cube, **(given.get("concat") or {}))
    left = others | {"concat", "target_options", "ref_storage_args"}
    named = {name: value for name, value in given.items() if name not in left}
    return joined, named | {name: value for name, value in joined.opened_with.items() if name == "allow"}


def join_if_many(fo: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Join ``fo`` if it stands for several sources; return one source, and the keywords for its filesystem."""
    fo, named = resolve_source(fo, given)
    return join_sources(fo, named) if stands_for_many(fo, named) else (fo, named)
