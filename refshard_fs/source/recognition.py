"""Recognise the format of a source by its content, and open the source as a key space."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final

import msgspec

from refshard_fs.core.columns import Texts
from refshard_fs.core.compression import decompress_file
from refshard_fs.core.format import IN_MEMORY, Document, Format, OpenOptions, Probe, Version, check_size, read_documents
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts, Head, Load, Raw, Span, Stat, Steps
from refshard_fs.core.model import Names as NamesOf
from refshard_fs.core.zarrmeta import CONSOLIDATED, NODE_DOCUMENTS
from refshard_fs.errors import ManifestError, NoSuchSource, SourceNotReachable, UnknownSource
from refshard_fs.formats.chunk_manifest.entries import MARK
from refshard_fs.formats.chunk_manifest.view import ManifestView
from refshard_fs.known_formats import load_formats
from refshard_fs.reading.failures import note_source
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import make_resolver
from refshard_fs.security.admission import OBJECT_STORES, WEB
from refshard_fs.security.policy import DECOMPRESS, directory_of, make_locator, protocol_of
from refshard_fs.sharding.known_shard_formats import load_shard_formats
from refshard_fs.sharding.view import ShardView
from refshard_fs.source.unread_kinds import decompress_probe, find_compressor, recognise_unsupported
from refshard_fs.targets.failures import Denial

FIRST_BLOCK: Final = 1 << 20  # bytes that are read of a compressed file: fewer may decompress to nothing
ROOT_DOCUMENTS: Final = ("zarr.json", ".zgroup", ".zattrs", CONSOLIDATED)  # zarr requests these first
_ROOT: Final = re.compile(r"\.zarr(/[^/.]*)*$|/$")
PAGE: Final = "a web page, for example of a login or an error"


def open_source(url: str, options: OpenOptions, format: str | None = None) -> Steps[KeySpace]:
    """Open the source at ``url``, in the format called ``format``, or in the only format that recognises it.

    Raises SourceNotReachable if there is no source; UnknownSource if no format, or more than one, recognises it.
    """
    if format is not None and format in load_formats() and load_formats()[format].opens_unseen:
        return (yield from _open(Probe(url), options, format))
    probe = yield from _probe(url, options)
    if format is None and not probe.is_directory and not any(_find_fitting(probe)):
        try:  # a web server may answer the URL of a directory with a page about it
            probe = yield from _probe_directory(url, options.max_manifest_bytes)
        except SourceNotReachable:
            pass
    return (yield from _open(probe, options, format))


def _open_other(url: str, options: OpenOptions) -> Steps[KeySpace]:
    """Open a source in another source, such as a piece of a cube.

    If the inner source is gone, its error must not mean that the outer source is missing: a writer would then replace
    the outer source.
    """
    try:
        return (yield from open_source(url, msgspec.structs.replace(options, group="", awaited=())))
    except NoSuchSource as e:
        raise SourceNotReachable(str(e)) from e
    except OSError as e:
        note_source(e, url)
        raise


def open_bytes(data: bytes, options: OpenOptions, format: str | None = None) -> Steps[KeySpace]:
    """Open a document whose bytes are ``data``."""
    return (yield from _open(Probe(IN_MEMORY, Facts(len(data)), data), options, format))


def open_references(refs: ReferenceSet, options: OpenOptions) -> Steps[KeySpace]:
    """Open a reference set in memory; this reads targets only if metadata documents are references."""
    keyspace = FlatKeySpace(refs, make_resolver(options, None), "the references in memory")
    return (yield from apply_views(keyspace, options))


def make_empty_source(url: str, options: OpenOptions) -> KeySpace:
    """Make a key space without keys, for a source that the first commit creates."""
    refs = ReferenceSet(Texts.of(()), {}, {})
    return FlatKeySpace(refs, make_resolver(options, directory_of(url.rstrip("/"))), url)


def _open(probe: Probe, options: OpenOptions, format: str | None) -> Steps[KeySpace]:
    if options.open_other is None:
        options = msgspec.structs.replace(options, open_other=_open_other)
    probe = yield from _look_inside(probe, options)
    opener = _choose_format(probe, format)
    if options.version != Version() and not opener.has_versions:
        raise ManifestError(
            f"{options.version} is not possible: {probe.url} has the format {opener.name!r}, which has no versions: "
            "leave this argument out"
        )
    steps: Any = opener.open(probe, options)  # a plug-in may return anything
    keyspace = (yield from steps) if (is_generator := isinstance(steps, Generator)) else steps
    if not is_generator or not isinstance(keyspace, KeySpace):
        kind = f"{'' if is_generator else 'no generator, but '}{type(keyspace).__name__}"
        where = f"open_ of format {opener.name!r} ({opener.module})"
        raise TypeError(f"{where} must be a generator that returns a KeySpace, got {kind}")
    keyspace.format = opener.name
    documents = keyspace.root_documents
    view = yield from apply_views(keyspace, options, has_root=not probe.is_directory or "zarr.json" in probe.names)
    keyspace.root_documents = documents if options.recalls else {}  # the views have read and removed them
    return view


def _look_inside(probe: Probe, options: OpenOptions) -> Steps[Probe]:
    """Return the probe of the decompressed file, if a format recognises only that; otherwise ``probe``.

    Cubes and reference sets are read compressed. Raise UnknownSource for a file of a known but unsupported kind,
    compressed or not, and for a compressed document that fits no format.
    """
    codec, max_bytes = find_compressor(probe.head), options.max_manifest_bytes
    inner = decompress_probe(probe)
    if codec and not inner.head and probe.facts is not None and (probe.facts.size or 0) > len(probe.head):
        span = Span(
            probe.url, 0, min(FIRST_BLOCK, max_bytes), exact=False, pin=probe.facts.pin
        )  # bzip2 has large blocks
        inner = decompress_probe(msgspec.structs.replace(probe, head=(yield Load(span, Raw()))))
    kind = recognise_unsupported(inner.head)
    how = "" if codec is None else f", compressed as a whole with {codec}"
    if any(not f.is_general for f in _find_fitting(probe)):  # cubes are read compressed, too
        return probe
    if any(not f.is_general for f in _find_fitting(inner)):
        return (yield from _decompress(probe, options))
    if kind is not None:
        raise UnknownSource(f"{probe.url} is {kind[0]}{how}, which is not supported: {kind[1]}")
    is_whole = probe.facts is not None and probe.facts.size == len(probe.head)
    if codec is not None and not inner.head and is_whole and not decompress_file(probe.head, probe.url):
        raise UnknownSource(f"{probe.url} is an empty document{how}. Was it written to the end?")
    if codec is not None and inner.head and not any(_find_fitting(inner)):
        raise UnknownSource(
            f"{probe.url} is a document that starts with {inner.head[:16]!r}{how}: it fits no known format"
        )
    return probe


def _decompress(probe: Probe, options: OpenOptions) -> Steps[Probe]:
    """Return the probe of the decompressed file."""
    if not probe.is_in_memory:
        return (yield from _probe(DECOMPRESS + probe.url, options))
    data = decompress_file(probe.head, probe.url)
    return Probe(IN_MEMORY, Facts(len(data)), data)


def _find_fitting(probe: Probe) -> Iterator[Format]:
    """Yield the formats that recognise the source. If a format fails to decide this, raise an error that names it."""
    for format in load_formats().values():
        try:
            is_fitting = format.recognises(probe)
        except Exception as e:
            reason = f"{type(e).__name__}: {e}"
            raise RuntimeError(f"`recognises` of format {format.name!r} ({format.module}) failed: {reason}") from e
        if is_fitting:
            yield format


def _choose_format(probe: Probe, name: str | None) -> Format:
    """Return the format called ``name``, or the only one that recognises the source; else raise UnknownSource."""
    known = load_formats()
    if name is not None:
        if name not in known:
            raise UnknownSource(f"format={name!r} is unknown: expected one of {', '.join(sorted(known))}")
        return known[name]
    fitting = list(_find_fitting(probe))
    if len(fitting) > 1:
        fitting = [f for f in fitting if not f.is_general]
    if len(fitting) == 1:
        return fitting[0]
    remedy = "Pass the format with format="
    if probe.is_directory:
        inside = sorted(probe.names)
        what = "a directory with " + (", ".join(inside[:8]) or "no known file in it")
        kinds = Counter(name.rpartition(".")[2] for name in inside if "." in name[1:])
        if kinds and not fitting:  # the pattern has the most frequent suffix
            remedy = f"To join its files, open '{probe.url.rstrip('/')}/*.{kinds.most_common(1)[0][0]}'"
    elif not probe.head:
        what, remedy = "an empty document", "Was it written to the end?"
    elif not probe.head.strip(b"\0"):
        what, remedy = f"a file whose first {len(probe.head):,} bytes are zero", "Was it written to the end?"
    else:
        what = f"a document that starts with {probe.head[:16]!r}"
        if not fitting and probe.head.lstrip()[:1] == b"<":
            remedy = f"Is this the URL of the file itself? It looks like {PAGE}"
        elif not fitting and probe.head.lstrip()[:1] == b"[":
            remedy = "A set of references is a JSON object. To join the sources in a JSON list, pass the loaded list"
    names = ", ".join(f.name for f in fitting or known.values())
    if fitting:
        raise UnknownSource(f"{probe.url} is {what}: it fits several formats ({names}). {remedy}")
    raise UnknownSource(f"{probe.url} is {what}: it fits no known format. {remedy} (known formats: {names})")


def apply_views(keyspace: KeySpace, options: OpenOptions, has_root: bool = True) -> Steps[KeySpace]:
    """Put the views of chunk manifests and of shards on top of ``keyspace``, if it may need them."""
    if keyspace.metadata_lacks((MARK, *(mark for known in load_shard_formats() for mark in known.marks))):
        return keyspace
    if not keyspace.resolves_manifests:
        mapped = ManifestView(keyspace, options)
        mapped.confirms = options.shards == "whole"  # else the view of shards confirms
        yield from mapped.register_arrays(has_root=has_root)
        keyspace = keyspace if keyspace.holds_all_metadata and not mapped.maps_anything else mapped
    if options.shards == "whole":
        return keyspace
    view = ShardView(keyspace, options.shard_options, options.whole)
    yield from view.register_arrays()
    return keyspace if keyspace.holds_all_metadata and not view.shards_anything else view


def names_manifests(document: bytes) -> bool:
    """Return whether a metadata document says that the chunks of an array are in a chunk manifest."""
    return MARK in document


def may_be_root(url: str) -> bool:
    """Return whether a URL looks like the URL of a group or an array of a remote zarr store."""
    return _is_remote(url) and _ROOT.search(url.partition("?")[0]) is not None


def _is_remote(url: str) -> bool:
    """Return whether ``url`` is on a server, where listing a directory is as slow as reading a document."""
    return protocol_of(url) in OBJECT_STORES | WEB


def _probe(url: str, options: OpenOptions) -> Steps[Probe]:
    max_bytes, is_root = options.max_manifest_bytes, may_be_root(url)
    tries = [options.root_documents] if _is_remote(url) else []
    if is_root and any("/" in key for key in options.awaited):  # a node below shows that the source is a hierarchy
        tries += [(*ROOT_DOCUMENTS[:1], *options.awaited), ROOT_DOCUMENTS]
    elif is_root:
        tries += [tuple(dict.fromkeys((*ROOT_DOCUMENTS, *options.awaited)))]
    for names in tries:
        if names and (found := (yield from _probe_zarr(url, max_bytes, names))) is not None:
            return found
    try:
        facts, head = yield from _read_head(url, min(options.head, max_bytes))
    except OSError as e:  # a web server may refuse the URL of a directory, and serve the objects below it
        if _is_final(e):
            raise
        try:
            return (yield from _probe_directory(url, max_bytes))
        except SourceNotReachable:
            raise e from None
    if facts is not None and not url.endswith("/"):
        return Probe(url, facts, head)
    if (
        _is_remote(url)
        and not is_root
        and (found := (yield from _probe_zarr(url, max_bytes, ROOT_DOCUMENTS))) is not None
    ):
        return found
    return (yield from _probe_directory(url, max_bytes))


def _probe_zarr(url: str, max_bytes: int, names: Sequence[str]) -> Steps[Probe | None]:
    """Request documents of a zarr hierarchy at ``url``, by their keys, together; return None if no node has one.

    Documents of the other version of zarr count as absent until they are looked up again. Also return None if the
    server answers every URL with a web page.
    """
    below = make_locator(url)
    try:
        found = yield from read_documents([below(name) for name in names], max_bytes)
    except OSError as e:  # the caller then requests single names, and raises their errors
        if _is_final(e):
            raise
        return None
    present = {name: document for name, document in zip(names, found, strict=True) if document is not None}
    are_nodes = any(name.rpartition("/")[2] in NODE_DOCUMENTS for name in present)
    if not are_nodes or any(document.data.lstrip()[:1] == b"<" for document in present.values()):
        return None
    other_version = ROOT_DOCUMENTS[1:] if "zarr.json" in present else ROOT_DOCUMENTS[:1]
    return Probe(url, None, b"", frozenset(present), present, frozenset((*names, *other_version)) - present.keys())


def _read_head(url: str, length: int) -> Steps[tuple[Facts | None, bytes]]:
    """Return the facts and the first bytes of a document, by one request if the server supports ranges."""
    try:
        found: tuple[Facts, bytes] | None = yield Head(url, length)
    except OSError as e:
        if _is_final(e):
            raise
        facts: Facts | None = yield Stat(url, fresh=True)
        if facts is None or facts.size == 0:
            return facts, b""
        return facts, (yield Load(Span(url, 0, length, exact=False, pin=facts.pin), Raw()))
    return found or (None, b"")


def _is_final(error: OSError) -> bool:
    """Return whether further requests would fail, too: the server does not answer, or requires a login."""
    return isinstance(error, TimeoutError) or (isinstance(error, Denial) and error.status in (401, 407))


def _probe_directory(url: str, max_bytes: int) -> Steps[Probe]:
    below, known = make_locator(url), load_formats()
    wanted = sorted({d for f in known.values() for d in f.documents})
    markers = sorted({m for f in known.values() for m in f.markers} - {*wanted})
    is_web = protocol_of(url) in WEB  # web servers do not list: all names are requested in one round
    asked = [*wanted, *markers] if is_web else wanted
    names, *stats = yield NamesOf(url), *(Stat(below(name), fresh=True) for name in asked)
    facts = dict(zip(asked, stats, strict=True))
    documents = yield from _read_documents(below, {name: facts[name] for name in wanted}, max_bytes)
    if any(document.data.lstrip()[:1] == b"<" for document in documents.values()):
        raise NoSuchSource(f"{url}: there is no source. The server answers every request with {PAGE}")
    if names:
        return Probe(url, None, b"", frozenset(n.name for n in names), documents)
    if not is_web:
        facts |= dict(zip(markers, (yield tuple(Stat(below(name), fresh=True) for name in markers)), strict=True))
    present = frozenset(name for name, found in facts.items() if found is not None)
    if not present:
        remedy = "Check the path"
        if protocol_of(url.rpartition("::")[2]) in OBJECT_STORES:
            remedy += ", and the arguments for another store (endpoint_url=, account_name=)"
        local = protocol_of(url) in (None, "file") and url.endswith("/")
        if local and (yield Stat(url.rstrip("/"), fresh=True)) is not None:
            remedy = "Without the '/' at its end, it is the path of a file"
        elif protocol_of(url) in WEB and url.endswith("/"):
            remedy += (
                f". To join the files of a folder, open '{url}*' if the server has a page of links to them, or pass a "
                "list of their URLs"
            )
        if "*" in url:
            remedy = "For a pattern, call refshard_fs.concat(url, dim=...): it joins all matching sources"
        if names is not None and protocol_of(url) in (None, "file"):
            raise NoSuchSource(
                f"{url} is an empty directory: expected a zarr hierarchy, a set of references or another store in it. "
                f"To join files, put them there, and open a pattern such as '{url.rstrip('/')}/*.nc'"
            )
        raise NoSuchSource(f"{url}: there is no such object, and no directory with a source in it. {remedy}")
    return Probe(url, None, b"", present, documents)


def _read_documents(
    below: Callable[[str], str], facts: dict[str, Facts | None], max_bytes: int
) -> Steps[dict[str, Document]]:
    present = {name: known for name, known in facts.items() if known is not None}
    for name, known in present.items():
        check_size(known.size, max_bytes, below(name))
    spans = [Span(below(name), optional=True, pin=known.pin) for name, known in present.items()]
    read = yield tuple(Load(span, Raw()) for span in spans)
    return {name: Document(data, present[name]) for name, data in zip(present, read, strict=True) if data is not None}
