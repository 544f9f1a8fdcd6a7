"""List all shard formats, and find the format of an array by its metadata. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from refshard_fs.core.format import load_plugins
from refshard_fs.sharding import sharding_indexed, v2
from refshard_fs.sharding.layout import ShardFormat, Unsharded

BUILT_IN: Final = (v2.SHARD_FORMAT, sharding_indexed.SHARD_FORMAT)


@cache
def load_shard_formats() -> tuple[ShardFormat, ...]:
    """Return this package's shard formats, and the formats of the entry point group ``refshard.shards``."""
    return tuple(load_plugins("refshard.shards", ShardFormat, BUILT_IN).values())


def unshard_metadata(
    doc: Mapping[str, Any], options: Mapping[str, Any], formats: Sequence[ShardFormat] | None = None
) -> Unsharded | None:
    """Return the result of the first shard format that recognises the metadata ``doc``; by default, try all formats."""
    answers = (known.unshard(doc, options) for known in (load_shard_formats() if formats is None else formats))
    return next((found for found in answers if found is not None), None)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError unless ``options`` are options of known shard formats, with possible values."""
    if not options:
        return
    known = {name: values for shard_format in load_shard_formats() for name, values in shard_format.options.items()}
    for name, value in options.items():
        if name not in known or value not in known[name]:
            choices = "; ".join(f"{n}: {' or '.join(map(repr, v))}" for n, v in sorted(known.items()))
            raise TypeError(f"invalid shard_options {name}={value!r}: expected {choices}")
