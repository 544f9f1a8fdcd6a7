"""Change the URLs of a reference set whose targets have moved."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import msgspec

from refshard_fs.core.model import Origin
from refshard_fs.core.stats import format_count
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.errors import ManifestError, SourceNotReachable, redact
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.stream import Respell
from refshard_fs.security.admission import Admission
from refshard_fs.security.origins import Adoption, Origins
from refshard_fs.security.policy import LOCAL, directory_of, find_longest_prefix, protocol_of, resolve
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.sets.join_sources import join_if_many
from refshard_fs.sets.lazy_set import OTHERS, LazySet
from refshard_fs.sets.made_set import MadeSet, make_set, restore_set
from refshard_fs.sets.opened_set import FileSystemLike, open_set
from refshard_fs.source.collect import respell_urls
from refshard_fs.source.in_memory_source import find_target_arguments, get_content
from refshard_fs.stores.objects import Objects
from refshard_fs.writing.cube_document import REMARK

_again = restore_set  # the name in pickles of earlier versions


Missing = Literal["raise", "ignore"]


@overload
def rebase(fo: MadeSet, prefixes: Mapping[str, str], *, missing: Missing = ..., **options: Any) -> MadeSet: ...


@overload
def rebase(fo: Any, prefixes: Mapping[str, str], *, missing: Missing = ..., **options: Any) -> MadeSet | LazySet: ...


def rebase(fo: Any, prefixes: Mapping[str, str], *, missing: Missing = "raise", **options: Any) -> MadeSet | LazySet:
    """Return the set ``fo`` with prefixes of URLs replaced: of each URL, the longest that ends before or at a slash.

    ``fo`` is a source or a filesystem; ``options`` are further arguments of `RefShardFileSystem`. Relative URLs become
    absolute before they are compared, and ``file:///data`` is ``/data``. Chunks are not read.

    A cube whose parts are not at their URLs any more becomes a cube of the moved parts. The pin of a target that moves
    (`refshard_fs.snapshot`) keeps only the size, with a warning, because another server gives other ETags and times.

    Raise ValueError if a prefix is empty, or if no URL begins with it (unless ``missing="ignore"``); TargetNotAllowed
    if a set that is not your own points to a URL that it may not point to.

    >>> import refshard_fs
    >>> old = {"a/.zgroup": '{"zarr_format": 2}', "a/0": ["s3://old/x.nc", 0, 4], "a/1": ["s3://older/x.nc", 4, 4]}
    >>> new = refshard_fs.rebase(old, {"s3://old/": "file:///data/"})
    >>> new.references["a/0"], new.references["a/1"]
    (['file:///data/x.nc', 0, 4], ['s3://older/x.nc', 4, 4])
    """
    if not isinstance(prefixes, Mapping):
        raise TypeError(f"prefixes={prefixes!r}: expected a mapping of old prefixes of URLs to new prefixes")
    if not all(prefixes):
        raise ValueError(f"prefixes={prefixes!r}: expected old prefixes of URLs, found an empty text")
    by_old_prefix = {_normalize(prefix): new for prefix, new in prefixes.items()}

    def respell(url: str | None) -> str | None:
        found = None if url is None else find_longest_prefix(by_old_prefix, _normalize(url))
        if url is None or found is None:
            return url
        stem, new = found
        rest = _normalize(url)[len(stem) :].removeprefix("/")
        base = new if new.endswith("://") else new.rstrip("/") + "/"
        return base + rest if rest else new.rstrip("/")

    fo, options = join_if_many(fo, options)
    opened = open_set(fo, options)
    try:
        refs = collect_references(opened)
    except SourceNotReachable:
        joined = _get_lazy_set(opened)
        if joined is None:
            raise
        if missing == "raise":
            _check_prefixes(prefixes, joined.urls)
        return joined.respell_urls(lambda url: respell(url) or url)
    origins = _find_moved_origins(refs, respell, dict.fromkeys(prefixes.values(), True), opened.source.admission)
    if missing == "raise":
        _check_prefixes(prefixes, [url for url in refs.urls if url is not None])
    new = msgspec.structs.replace(respell_urls(refs, respell), origins=origins)
    if refs.pins is not None:
        moved = [respell(url) != url for url in refs.urls]
        pins = refs.pins.keep_sizes(moved)
        lost = sum(1 for i, gone in enumerate(moved) if gone and pins.get_pin(i) != refs.pins.get_pin(i))
        if lost:
            warnings.warn(
                f"{format_count(lost, 'target that moved is', 'targets that moved are')} now checked only by size, "
                "because ETags and times belong to the old URLs. Take a snapshot of the new set to pin them again",
                UserWarning,
                stacklevel=2,
            )
        new = msgspec.structs.replace(new, pins=pins)
    return make_set(new, find_target_arguments(fo))


def _get_lazy_set(opened: FileSystemLike) -> LazySet | None:
    """Return the user's own cube, which could not be opened, with absolute URLs; None for other sources."""
    source = opened.source.options.source
    content = get_content(source)
    if isinstance(source, str) and opened.source.admission.trusts_source:
        data = Objects(source, opened.source.stores).read([""])[""]
        directory: str | None = directory_of(source)
    elif isinstance(content, bytes):
        data, directory = content, None
    else:
        return None
    try:
        document = ConcatDocument.read(data, str(source))
    except ManifestError:
        return None
    data = document.dumps(lambda url: resolve(url, directory, None))
    joined = f"{format_count(document.count, 'set')} joined along {document.dim}"
    remark = f"{REMARK}. {OTHERS}"
    return LazySet(data, hashlib.sha256(data).hexdigest(), remark, joined, find_target_arguments(source))


def _normalize(url: str) -> str:
    """Return the path of a local file, and any other URL unchanged."""
    return "/" + url.partition("://")[2].lstrip("/") if protocol_of(url) in LOCAL and "::" not in url else url


def _find_moved_origins(refs: ReferenceSet, respell: Respell, chosen: Mapping[str, bool], rule: Admission) -> Origins:
    """Return the origins of the respelled ``refs``: targets that move to one of the ``chosen`` prefixes are the user's.

    All other targets keep their origins.
    """
    adoption = Adoption(rule)
    for url in refs.urls:
        if respell(url) == url:
            adoption.add(url)
    known = adoption.combine_origins(refs.origins)
    if not known:
        return known
    strangers = () if rule.source is None or rule.trusts_source else (rule.source,)
    named: list[tuple[str, Origin]] = []
    for url, new in ((url, respell(url)) for url in refs.urls if url is not None):
        is_chosen = new != url and find_longest_prefix(chosen, new or "") is not None  # "..": it may leave the prefix
        named.append((new or url, () if is_chosen else known.of(url) or strangers))
    return Origins.combine(named, known.servers)


def _check_prefixes(prefixes: Iterable[str], urls: Sequence[str]) -> None:
    """Raise ValueError if none of ``urls`` begins with a prefix: it is most likely misspelled."""
    for prefix in prefixes:
        if not urls:
            raise ValueError(
                f"no URL begins with {prefix!r}: the set has no URLs, because it contains the bytes of all its keys, "
                "and does not depend on where files are. missing='ignore' returns it unchanged"
            )
        normalized = {_normalize(prefix): None}
        if not any(find_longest_prefix(normalized, _normalize(url)) for url in urls):
            raise ValueError(
                f"none of the set's {format_count(len(urls), 'URL')} begins with {prefix!r}: expected the beginning of "
                f"a URL, such as {redact(urls[0])!r}, up to a slash. missing='ignore' ignores other prefixes"
            )
