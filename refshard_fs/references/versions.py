"""Request the current versions of targets, and pin references to these versions. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from refshard_fs.core.model import Facts, Pin, Stat, Steps, iterate_batches
from refshard_fs.errors import SourceNotReachable, sanitize_cause
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.security.origins import NOTHING, Origins

STAT_BATCH: Final = 256  # objects whose facts are requested at a time


def pin_targets(refs: ReferenceSet, on_progress: Callable[[int], object]) -> Steps[ReferenceSet]:
    """Return ``refs``, whose URLs are absolute, with pins to the current versions of the targets that exist.

    ``on_progress(n)`` is called after n more targets.
    """
    urls = list(refs.urls)
    pins: list[Pin | None] = []
    for part in iterate_batches(urls, STAT_BATCH):
        found = iter((yield from request_facts([url for url in part if url is not None], refs.origins)))
        pins += [None if url is None else make_pin(next(found)) for url in part]
        on_progress(len(part))
    return msgspec.structs.replace(refs, pins=Pins.of(pins))


def request_facts(urls: Sequence[str], origins: Origins = NOTHING) -> Steps[Sequence[Facts | None]]:
    """Request the current facts of the objects at ``urls``; None for objects that do not exist."""
    try:
        found: Sequence[Facts | None] = yield tuple(Stat(url, fresh=True, origin=origins.of(url)) for url in urls)
    except OSError as e:
        where = urls[0] if len(urls) == 1 else f"one of {len(urls)} objects from {urls[0]} to {urls[-1]}"
        raise SourceNotReachable(f"the current version of {where} cannot be read: {e}") from sanitize_cause(e)
    return found


def make_pin(facts: Facts | None) -> Pin | None:
    """Return the pin of an object with ``facts``, but no ETag that this package made; None if ``facts`` is None."""
    if facts is None:
        return None
    return Pin(facts.named_etag, facts.last_modified, facts.size, exact=True)
