"""Recognise a source by its content, and open it as a key space."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points

from refshard_fs import manifests, shards
from refshard_fs.errors import SourceNotReachable, UnknownSource
from refshard_fs.formats import HEAD, HELD, Document, Format, OpenOptions, Probe, Raw
from refshard_fs.keyspace import KeySpace
from refshard_fs.model import Facts, Load, Pin, Span, Stat, Steps
from refshard_fs.model import Names as NamesOf
from refshard_fs.policy import relative_to

__all__ = ["formats", "open_bytes", "open_source"]


@cache
def formats() -> dict[str, Format]:
    """Return every known format by name: this package's, and those of the entry point group ``refshard.formats``."""
    found = {}
    for package in (manifests, shards):
        for name in package.FORMATS:
            known: Format = importlib.import_module(f"{package.__name__}.{name}").FORMAT
            found[known.name] = known
    for entry in entry_points(group="refshard.formats"):
        known = entry.load()
        found[known.name] = known
    return found


def open_source(url: str, options: OpenOptions, format: str | None = None) -> Steps[KeySpace]:
    """Open what lies at ``url``, in a format that it is recognised as, or that ``format`` names.

    SourceNotReachable if there is nothing; UnknownSource if no format, or more than one, fits.
    """
    known = formats()
    return (yield from _open((yield from _probe(url, known)), options, format))


def open_bytes(data: bytes, options: OpenOptions, format: str | None = None) -> Steps[KeySpace]:
    """Open a document that is at hand."""
    return (yield from _open(Probe(HELD, Facts(len(data)), data), options, format))


def _open(probe: Probe, options: OpenOptions, format: str | None) -> Steps[KeySpace]:
    known = formats()
    if format is not None:
        if format not in known:
            raise UnknownSource(f"format={format!r} is not known; there are: {', '.join(sorted(known))}")
        return (yield from known[format].open(probe, options))
    fitting = [f for f in known.values() if f.recognises(probe)]
    if len(fitting) != 1:
        what = "a directory with " + (", ".join(sorted(probe.names)[:8]) or "nothing known in it")
        if not probe.is_directory:
            what = f"a document that starts with {probe.head[:16]!r}"
        names = ", ".join(f.name for f in fitting or known.values())
        verdict = "fits several formats" if fitting else "is no source that is known"
        raise UnknownSource(f"{probe.url} is {what}: it {verdict} ({names}). Name one with format=")
    return (yield from fitting[0].open(probe, options))


def _probe(url: str, known: dict[str, Format]) -> Steps[Probe]:
    facts: Facts | None = yield Stat(url)
    if facts is not None and not url.endswith("/"):
        head = b""
        if facts.size != 0:
            head = yield Load(Span(url, 0, HEAD, exact=False), Raw())
        return Probe(url, facts, head)
    wanted = sorted({d for f in known.values() for d in f.documents})
    names, *stats = yield NamesOf(url), *(Stat(relative_to(url, name)) for name in wanted)
    documents = yield from _documents(url, dict(zip(wanted, stats, strict=True)))
    if names is not None and names:
        return Probe(url, None, b"", frozenset(n.name for n in names), documents)
    markers = sorted({m for f in known.values() for m in f.markers})
    there = yield tuple(Stat(relative_to(url, marker)) for marker in markers)
    present = frozenset(m for m, f in zip(markers, there, strict=True) if f is not None)
    if not present:
        raise SourceNotReachable(f"{url}: there is nothing here that could be read as a source")
    return Probe(url, None, b"", present, documents)


def _documents(url: str, facts: dict[str, Facts | None]) -> Steps[dict[str, Document]]:
    there = {name: f for name, f in facts.items() if f is not None}
    pins = [Pin(f.etag, f.last_modified, f.size) for f in there.values()]
    spans = [Span(relative_to(url, name), optional=True, pin=pin) for name, pin in zip(there, pins, strict=True)]
    read = yield tuple(Load(span, Raw()) for span in spans)
    return {name: Document(data, there[name]) for name, data in zip(there, read, strict=True) if data is not None}
