"""Scan many sources together: collect the references to the chunks of each source, and the values of its coordinates.

One engine drives the look-ups of `ROUND` sources in the same rounds, for `ROUNDS` such batches at a time. A source that
is small, or has its index at the beginning, takes one request. After a source is scanned, only its references are kept.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core.columns import Texts
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace, Likeness
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Facts, Load, Raw, Stat, Steps, iterate_batches, read_once
from refshard_fs.cubes.merging import apply_choices
from refshard_fs.cubes.piece_view import with_origin_of_piece
from refshard_fs.errors import ManifestError, RefShardError, TargetNotAllowed, sanitize_cause
from refshard_fs.reading.failures import make_source_error, name_key
from refshard_fs.reading.read_ranges import ReadRanges
from refshard_fs.references.reference_set import ReferenceSet, adopt
from refshard_fs.security.admission import WEB, Admission, is_trusted
from refshard_fs.security.policy import place_of, protocol_of, server_of, split_chain
from refshard_fs.sets.document_template import DocumentParser, is_document
from refshard_fs.sets.file_template import FileTemplates, FirstBytes
from refshard_fs.sets.stored_coordinates import add_coordinates, split_coordinate_chunks
from refshard_fs.sets.variables import NamedSet, VariableReader
from refshard_fs.source.collect import UnreadArrays, collect_steps, respell_urls
from refshard_fs.source.in_memory_source import find_target_arguments, make_portable_source
from refshard_fs.source.normalizing import parse_options
from refshard_fs.source.recognition import may_be_root, open_source
from refshard_fs.source.settings import Settings
from refshard_fs.source.source import Engines
from refshard_fs.targets.versioned import Versions
from refshard_fs.writing.save import make_speller

ROUND: Final = 16  # sources whose look-ups are driven together: each waits for all of them
ROUNDS: Final = 16  # such rounds that are under way at once, so that some are decoded while others wait
LIKENESSES: Final = 16  # kinds of files by one writer whose references are remembered in a scan
REMEMBERED: Final = 32 << 20  # bytes of indexes of sources that are being scanned
VERSIONS: Final = 4096  # versions of objects that are being read: many times `ROUND` × `ROUNDS`
_OTHER_DOCUMENT: Final = re.compile(rb'\s*\{\s*"refshard"\s*:\s*"')  # JSON of a cube or a rule, not of references


# Options that say how sources are read, and not what they mean.
READING: Final = frozenset(["concurrency", "fast_s3", "max_memory", "retries", "timeout"])
_UNDERSTOOD: Final = READING | {
    *("allow", "index_cache", "max_manifest_bytes", "options", "ref_storage_args", "select", "target_options")
}


class ScanResult(NamedTuple):
    """The references of a source, with absolute URLs and inline coordinates; its version, if it is one object.

    ``select`` is the part of the source that ``preprocess`` chose, as JSON.
    """

    refs: ReferenceSet
    facts: Facts | None = None
    select: Sequence[Any] = ()


class SameVersion:
    """The answer for a source that was not read, since it still has the known version."""


# Called with number and result of each source.
Found = Callable[[int, ScanResult | Exception | SameVersion], object]
Known = Mapping[str, Facts]  # versions of sources in an earlier scan, by URL


def can_scan(options: Mapping[str, Any]) -> bool:
    """Return whether sources can be scanned together with these options; other options change what a source means."""
    return options.keys() <= _UNDERSTOOD


def find_scannable(urls: Mapping[int, str], options: Mapping[str, Any]) -> dict[int, str]:
    """Return the ``urls`` that can be scanned together; all others are opened one by one.

    With ``allow=``, each file on this machine, and each source that is not listed, needs a separate rule for targets.
    """
    rule = _prepare_rule(options)(None)
    return {number: url for number, url in urls.items() if "::" not in url and _is_listed(url, rule)}


def _is_listed(url: str, rule: Admission) -> bool:
    if rule.admits_all or is_trusted(url):
        return rule.admits_all
    try:
        return bool(rule.admit(url))
    except TargetNotAllowed:
        return False


def _prepare_rule(options: Mapping[str, Any]) -> Callable[[str | None], Admission]:
    """Return a function that makes the rule for the targets of a source from its URL.

    Credentials for sources permit no references from one source to another.
    """
    prefixes = [*(options.get("options") or {})]
    return partial(Admission.of, allow=options.get("allow"), protocols=(), prefixes=prefixes)


def choose_reading_options(urls: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a filesystem that reads the objects at ``urls`` as the user's ``options`` say."""
    passed = {
        name: value
        for name, value in options.items()
        if name in (*READING, "index_cache", "options", "max_manifest_bytes")
    }
    credentials = options.get("ref_storage_args", options.get("target_options"))
    if credentials is not None:
        places = dict.fromkeys(place_of(url) or url for url in urls)
        passed["options"] = {**{place: dict(credentials) for place in places}, **(options.get("options") or {})}
    return passed


def choose_opening_options(sources: Collection[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for the targets of a set that is made of ``sources``, which the user opened with ``options``.

    Credentials for a source apply to its bucket. For a source on a web server, or in a chain of URLs, they apply to
    this URL only: a prefix of the whole server would permit a stranger's set to point to this server, even in a private
    network.
    """
    found = {name: options[name] for name in ("fs", "remote_options", "remote_protocol") if options.get(name)}
    credentials = options.get("ref_storage_args") or options.get("target_options")
    urls = [os.fspath(fo) for fo in sources if isinstance(fo, str | os.PathLike)] if credentials else []
    by_prefix: dict[str, Any] = {}
    for url in urls:
        is_alone = "::" in url or protocol_of(url) in WEB
        by_prefix[url if is_alone else place_of(url) or url] = dict(credentials or {})
    for fo in sources:
        by_prefix |= find_target_arguments(fo).get("options") or {}
    by_prefix |= options.get("options") or {}
    return found | ({"options": by_prefix} if by_prefix else {})


def add_sources(allow: Iterable[str] | str, sources: Iterable[Any]) -> list[str] | str:
    """Return ``allow`` for the set that is made of ``sources``: the user chose these, so the set may point to them."""
    if isinstance(allow, str):
        return allow
    urls = [str(make_portable_source(fo, None, None, True)) for fo in sources if isinstance(fo, str | os.PathLike)]
    links = (link for url in urls for link in split_chain(url) if "://" in link or link.startswith("/"))
    return list(dict.fromkeys([*allow, *links]))


def scan(
    urls: Sequence[str],
    options: Mapping[str, Any],
    found: Found,
    known: Known,
    unread: UnreadArrays | None = None,
    ranges: ReadRanges | None = None,
) -> None:
    """Call ``found`` with the number of each source in ``urls``, in any order, and with its content or error.

    An error that ``found`` raises ends the scan. The first bytes of the sources, and the metadata behind these, are put
    into ``ranges``.
    """
    reading = {**choose_reading_options(urls, options), "select": options.get("select")}
    settings = Settings.of(parse_options({}, reading))
    rule_of = _prepare_rule(options)
    pool = msgspec.structs.replace(settings.pool, admission=rule_of(None), rule_of=rule_of)
    whole = msgspec.structs.replace(settings.open, shards="whole", rule_of=rule_of)
    scanner = _Scanner(msgspec.structs.replace(settings, open=whole, pool=pool), known, unread, ranges)
    try:
        scanner.wait(scanner.scan_all, urls, found)
    finally:
        scanner.wait(scanner.close)


class _Scanner(Engines):
    """Open many sources; the origin of each decides to which targets it may point."""

    def __init__(self, options: Settings, known: Known, unread: UnreadArrays | None, ranges: ReadRanges | None) -> None:
        super().__init__(options, LRU(REMEMBERED), ranges)
        self._versions = Versions(VERSIONS)
        self._unread = unread
        self._known = known
        self._variables = VariableReader()
        self._common: LRU[Likeness, ReferenceSet] = LRU(LIKENESSES)
        self._parser = DocumentParser()
        self._alike = FileTemplates(
            self._collect,
            lambda url, refs: split_coordinate_chunks(NamedSet(url, refs, self._variables.read(refs, url))),
        )

    async def scan_all(self, urls: Sequence[str], found: Found) -> None:
        """Scan ``urls``, and call ``found`` with the number and the result of each. Errors of ``found`` are raised."""
        rounds = iterate_batches(range(len(urls)), ROUND)
        tasks = [asyncio.create_task(self._scan_rounds(rounds, urls, found)) for _ in range(ROUNDS)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _scan_rounds(self, rounds: Iterator[Sequence[int]], urls: Sequence[str], found: Found) -> None:
        for numbers in rounds:
            results = await self.engine().run_all([self._scan_source(urls[number]) for number in numbers])
            for number, result in zip(numbers, results, strict=True):
                found(number, result)

    async def close(self) -> None:
        """Close connections."""
        await self.engine().close()
        self._drop_engines()

    def _scan_source(self, url: str) -> Steps[ScanResult | SameVersion]:
        origin = None if is_trusted(url) else server_of(url)
        steps = read_once(self._scan_once(url))
        found = yield from steps if origin is None else with_origin_of_piece(steps, (origin,))
        if not isinstance(found, ScanResult) or origin is None or self.options.open.rule_of is None:
            return found
        allowed = self.admission
        rule = self.options.open.rule_of(url) if allowed.admits_all else msgspec.structs.replace(allowed, source=url)
        return found._replace(refs=adopt(found.refs, rule))

    def _scan_once(self, url: str) -> Steps[ScanResult | SameVersion]:
        """Return the references of the source ``url``, or SameVersion if its known version is unchanged."""
        most = self.options.open.max_manifest_bytes
        first = FirstBytes(url, min(self.options.open.head, most))
        likeness: Likeness | None = None
        try:
            if url in self._known and (yield Stat(url, fresh=True)) == self._known[url]:
                return SameVersion()
            if not may_be_root(url):
                yield from first.read()
            is_set = is_document(url) and not self.options.select
            alike = None if is_set else self._alike.find(first)
            if alike is not None and alike[1]:
                return ScanResult(alike[0], first.facts)
            refs = (yield from self._parse_document(first)) if is_set else alike and alike[0]
            if refs is None:
                space = yield from self._open(first)
                likeness = space.likeness
                common = None if likeness is None else self._common.get(likeness)
                if common is not None:
                    return ScanResult(msgspec.structs.replace(common, urls=Texts.of([url])), first.facts)
                refs = yield from self._scan_references(first, space)
                self._alike.add(first, refs)
        except RefShardError:
            raise
        except Exception as e:  # noqa: BLE001  # a FileNotFoundError would make every key look missing
            raise make_source_error(url, e) from sanitize_cause(e)
        try:
            part = NamedSet(url, refs, self._variables.read(refs, url))
            if likeness is not None and self._can_share(likeness, part):
                self._common.put(likeness, refs)
            refs = (yield from first.run(add_coordinates(part))).refs
        except RefShardError:
            raise
        except Exception as e:  # noqa: BLE001  # `name_key` makes one of our errors of it
            raise name_key("", e, first.url) from sanitize_cause(e)
        return ScanResult(refs, first.facts)

    def _parse_document(self, first: FirstBytes) -> Steps[ReferenceSet | None]:
        """Return the references of a JSON document; None if it has to be opened as a source."""
        facts, data = first.facts, first.data
        if facts is None or _OTHER_DOCUMENT.match(data):
            return None
        if facts.size != len(data):
            data = yield Load(Probe(first.url, facts, data).document(self.options.open.max_manifest_bytes), Raw())
        return self._parser.parse(data, first.url)

    def _can_share(self, likeness: Likeness, part: NamedSet) -> bool:
        """Return whether all sources with this ``likeness`` have the references of ``part``, except for their URL.

        This is so if the arrays whose chunks vary between such sources are not read, and no coordinate has to be read.
        """
        refs = part.refs
        if self._unread is None or refs.pins is not None or list(refs.urls) != [part.name]:
            return False
        left = self._unread.choose(refs.side, refs.tables)
        return likeness.varying <= left and split_coordinate_chunks(part) is None

    def _collect(self, first: FirstBytes) -> Steps[ReferenceSet]:
        """Return the references of a source."""
        return (yield from self._scan_references(first, (yield from self._open(first))))

    def _open(self, first: FirstBytes) -> Steps[KeySpace]:
        opened = yield from first.run(open_source(first.url, self.options.open))
        try:
            return (yield from first.run(apply_choices(opened, self.options.select)))
        except ManifestError as e:
            if type(e) is not ManifestError or first.url in str(e):
                raise
            raise ManifestError(f"{first.url}: {e}") from e  # the text names only the variable that is missing

    def _scan_references(self, first: FirstBytes, space: KeySpace) -> Steps[ReferenceSet]:
        try:
            refs = yield from first.run(collect_steps(space, self._unread))
        except Exception as e:  # noqa: BLE001  # `name_key` makes one of our errors of it
            raise name_key("", e, first.url) from sanitize_cause(e)
        return respell_urls(refs, make_speller(OpenOptions(), first.url))
