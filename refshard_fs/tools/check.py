"""Check a whole source before others rely on it: its metadata, its byte ranges, and the objects that they refer to.

A report says how much was read and decoded, so that unchecked data does not count as correct.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Literal, get_args

import numpy as np
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import WHOLE, UInt64s
from refshard_fs.core.compression import is_bounded
from refshard_fs.core.keys import ChunkGrid, join, make_relative, parent
from refshard_fs.core.model import Facts, Head, Stat, iterate_batches
from refshard_fs.core.stats import UNASKED, format_bytes, format_count
from refshard_fs.core.zarrmeta import find_decoding_problem
from refshard_fs.errors import (
    DamagedIndex,
    ManifestError,
    NotListable,
    RefShardError,
    TargetChanged,
    TargetNotAllowed,
    sanitize,
)
from refshard_fs.reading.failures import explain
from refshard_fs.security.admission import WEB
from refshard_fs.security.policy import protocol_of, server_of
from refshard_fs.targets import IGNORES_RANGES, Versions
from refshard_fs.tools.opening import Refusal, find_refusals, is_installed
from refshard_fs.tools.progress import show_progress
from refshard_fs.tools.survey import (
    INLINE,
    Extents,
    Fault,
    Positions,
    Survey,
    SurveyedFileSystem,
    find_array,
    read_keys,
    survey,
)
from refshard_fs.tools.trial import NotDecoded, StoredChunk, Trial
from refshard_fs.tools.views import EscapedStruct, render_folded, render_paragraph, render_table, render_view

CheckMode = Literal["head", "read", "full"]
Severity = Literal["error", "warning"]

SHOWN: Final = 10  # findings of one kind that are reported one by one


class Finding(EscapedStruct, frozen=True):
    """One fault (``error``) or possible fault (``warning``); ``key`` and ``url`` say where."""

    severity: Severity
    kind: str
    key: str
    url: str
    text: str


class Report(EscapedStruct, frozen=True):
    """The result of a check. ``counts`` has the number of findings by kind, ``findings`` the first of each kind.

    ``missing`` chunks are not errors: readers see the fill value. ``notes`` say what could not be checked, and why.
    """

    mode: CheckMode
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    keys: int = 0
    arrays: int = 0
    chunks: int = 0
    missing: int = 0
    targets: int = 0
    read: int = 0
    bytes_read: int = 0
    decoded: int = 0
    notes: tuple[str, ...] = ()

    @property
    def has_errors(self) -> bool:
        """Whether a finding is an error, not only a warning."""
        return any(finding.severity == "error" for finding in self.findings)

    def _repr_html_(self) -> str:
        figures = ("keys", "arrays", "chunks", "missing", "targets", "read", "bytes_read", "decoded")
        checked = [(name.replace("_", " "), f"{getattr(self, name):,}") for name in figures if getattr(self, name)]
        rows = [(found.severity, found.kind, found.key, found.url, found.text) for found in self.findings]
        total = format_count(sum(self.counts.values()), "finding") if rows else "no faults were found"
        return render_view(
            f"check: {total}",
            f"mode {self.mode}",
            render_table(
                ("severity", "kind", "key", "target", "text"), rows, most=100, total=sum(self.counts.values())
            ),
            *map(render_paragraph, self.notes),
            render_folded("Checks", render_table(("what", "count"), checked, right=["count"])),
        )


class Findings:
    """Collect findings: all are counted, and the first of each kind are kept, without passwords and tokens."""

    def __init__(self) -> None:
        self.shown: list[Finding] = []
        self.counts: dict[str, int] = {}

    def add_error(self, key: str, error: Exception, kind: str = "unreadable", url: str = "") -> None:
        """Add an error as a finding of ``kind``, or of a more specific kind for its type."""
        match error:
            case TargetNotAllowed():
                kind, url, text = "not-allowed", error.url, f"{error.rule}. {error.remedy}"
            case TargetChanged():
                kind, url, text = "changed", error.target, error.reason
            case NotListable():
                kind, text = "not-listable", str(error)
            case DamagedIndex():
                kind, url, text = "index", error.target, error.reason
            case ManifestError():
                kind, text = "metadata" if kind == "metadata" else "reference", str(error)
            case _:
                text = explain(error, url)
        self.add("error", kind, key, url, text)

    def add(self, severity: Severity, kind: str, key: str = "", url: str = "", text: str = "") -> None:
        """Add one finding."""
        self.count(kind, 1)
        if self.counts[kind] <= SHOWN:
            self.shown.append(Finding(severity, kind, key, sanitize(url)[:1000], sanitize(text)))

    def make_report(self, mode: CheckMode, **figures: Any) -> Report:
        """Return the findings, errors first, with the ``figures`` of checked items."""
        return Report(mode, tuple(sorted(self.shown, key=lambda finding: finding.severity)), self.counts, **figures)

    def count(self, kind: str, more: int) -> None:
        """Count ``more`` findings that are not kept."""
        if more > 0:
            self.counts[kind] = self.counts.get(kind, 0) + more


def check_documents(texts: Mapping[str, bytes], found: Findings) -> None:
    """Check each metadata document by itself, and compare consolidated metadata with the documents."""
    documents: dict[str, Mapping[str, Any]] = {}
    for name, text in texts.items():
        try:
            documents[name] = zarrmeta.object_in(text, repr(name))
            _check_document(name, documents[name], found)
        except ManifestError as e:
            found.add_error(name, e, "metadata")
    for name, document in documents.items():
        if parent(name)[1] in (".zmetadata", "zarr.json"):
            try:
                _compare_consolidated(name, document, documents, found)
            except ManifestError as e:
                found.add_error(name, e, "metadata")


def _check_document(name: str, document: Mapping[str, Any], found: Findings) -> None:
    path, kind = parent(name)
    if kind in (".zattrs", ".zmetadata"):
        return
    version = 3 if kind == "zarr.json" else 2
    if document.get("zarr_format") != version:
        raise ManifestError(f"{name!r}: expected zarr_format {version}, got {document.get('zarr_format')!r}")
    meta = zarrmeta.array_meta(document, repr(name))
    if meta is not None and kind != ".zgroup":
        problem = find_decoding_problem(meta, path)
        if problem is not None:
            found.add("error", "metadata", name, text=problem)
    elif kind == ".zarray" or (version == 3 and document.get("node_type") != "group"):
        raise ManifestError(f"{name!r}: expected the metadata of an array or a group, found other members")


def _compare_consolidated(
    name: str, document: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], found: Findings
) -> None:
    """Compare the arrays in the consolidated metadata ``name`` with their own documents, ``others``."""
    directory, kind = parent(name)
    for path, member in zarrmeta.iterate_consolidated_arrays(document, repr(name)):
        key = join(join(directory, path), ".zarray" if kind == ".zmetadata" else kind)
        if key not in others:
            found.add("warning", "consolidated", key, text=f"{name!r} contains it, but the source has no such document")
        elif _normalize(member, key) != _normalize(others[key], key):
            found.add("warning", "consolidated", key, text=f"{name!r} contains another version of it")


def _normalize(document: Mapping[str, Any], where: str) -> object:
    """Return the members that decide how an array is read, in one form for all spellings; None for a group."""
    meta = zarrmeta.array_meta(document, repr(where))
    if meta is None:
        return None
    rest = [document.get(field) for field in ("fill_value", "codecs", "compressor", "filters")]
    return meta.shape, meta.chunks, meta.grid, meta.dtype, meta.order, json.dumps(rest, sort_keys=True)


STAT_TOGETHER: Final = 1024  # targets whose sizes and versions are requested at a time


class Ranges:
    """The byte ranges of all keys as columns; keys whose bytes are computed from a range are left out. No I/O.

    Millions of references are compared by sorting, not one by one.
    """

    def __init__(self, source: Survey) -> None:
        self.source = source
        self._parts = [source.rest, *source.arrays.values()]
        self._ends = list(accumulate(map(len, self._parts)))
        columns = zip(*(part.chunks for part in self._parts), strict=True)
        _, targets, starts, stops, derived, _ = map(np.concatenate, columns)
        self._rows = np.flatnonzero((targets != INLINE) & ~derived)
        self.targets, self.starts, self.stops = targets[self._rows], starts[self._rows], stops[self._rows]

    def get_key(self, row: int) -> str:
        """Return the key of a row."""
        place = int(self._rows[row])
        part = bisect_right(self._ends, place)
        return self._parts[part].make_key(place - (self._ends[part - 1] if part else 0))

    def get_url(self, row: int) -> str:
        """Return the target of a row."""
        return self.source.urls[int(self.targets[row])]

    def format_range(self, row: int) -> str:
        """Return the range of a row in words."""
        stop = self.stops[row]
        return f"bytes [{self.starts[row]}, {'end' if stop == WHOLE else stop})"

    def count_rows(self) -> tuple[Positions, Positions]:
        """Return the first row of each target (-1: none), and the number of its rows."""
        first = np.full(len(self.source.urls), -1, np.int64)
        first[self.targets[::-1]] = np.arange(len(self.targets) - 1, -1, -1)
        return first, np.bincount(self.targets, minlength=len(first)).astype(np.int64)

    def find_beyond(self, sizes: UInt64s) -> Positions:
        """Return the rows that reach beyond their target; ``sizes`` has WHOLE for unknown sizes."""
        size = sizes[self.targets]
        over = np.where(self.stops == WHOLE, self.starts > size, self.stops > size)
        return np.flatnonzero(over & (size != WHOLE))

    def find_shared(self, sizes: UInt64s) -> tuple[Positions, Positions, Positions, Positions]:
        """Return pairs of rows that share bytes, as four columns.

        Rows that repeat the range of an earlier row, and these earlier rows; rows that begin within the range of an
        earlier row, and these earlier rows. If a row begins within several ranges, the earlier row is the nearest one.
        """
        stops = np.where(self.stops == WHOLE, sizes[self.targets], self.stops)
        known = np.flatnonzero((stops != WHOLE) & (stops > self.starts))
        order = known[np.lexsort((stops[known], self.starts[known], self.targets[known]))]
        targets, starts, ends = self.targets[order], self.starts[order], stops[order]
        same = (targets[1:] == targets[:-1]) & (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
        again = np.flatnonzero(same) + 1
        distinct = np.flatnonzero(np.append(True, ~same)) if len(order) else order
        near = (targets[distinct[1:]] == targets[distinct[:-1]]) & (starts[distinct[1:]] < ends[distinct[:-1]])
        within = np.flatnonzero(near)
        return order[again], order[again - 1], order[distinct[within + 1]], order[distinct[within]]


_UNDECODED: Final = 'zarr is not installed: chunks were read, and none was decoded. pip install "refshard_fs[zarr]"'
CHUNK_NAME: Final = re.compile(r"c|(?:c[/.])?\d+(?:[/.]\d+)*")
# The most chunks that are read at a time: starting a process that decodes chunks takes as long as decoding 1,000.
TOGETHER: Final = 1 << 14
MEMORY: Final = 1 << 26  # bytes of chunks that are read at a time, if their sizes are known


def check(
    fs: SurveyedFileSystem, mode: CheckMode = "head", *, sample: int = 100, callback: Callback = DEFAULT_CALLBACK
) -> Report:
    """Check all of ``fs``: its metadata, its byte ranges, each target by one request, and data as ``mode`` says.

    ``"head"`` reads no chunk, ``"read"`` reads ``sample`` chunks that are evenly spaced over all chunks, ``"full"``
    reads every chunk and, if zarr is installed, decodes it. Faults are in the report, not raised. ``callback`` counts
    checked items.

    >>> import json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta), "a/0": "ab", "a/7": "cd"}
    >>> report = refshard_fs.check(refshard_fs.RefShardFileSystem(refs))
    >>> report.missing, [(finding.kind, finding.key) for finding in report.findings]
    (1, [('outside-grid', 'a/7')])
    """
    if not hasattr(fs, "source"):
        raise TypeError(f"expected a filesystem, such as RefShardFileSystem({fs!r}), got {type(fs).__name__}")
    if mode not in get_args(CheckMode):
        raise ValueError(f"invalid mode={mode!r}: expected 'head', 'read' or 'full'")
    if sample < 1:
        raise ValueError(f"invalid sample={sample}: expected at least 1")
    found, faults = Findings(), list[Fault]()
    try:
        source = survey(fs, faults=faults)
    except NotListable as e:
        found.add("error", "not-listable", text=f"its keys cannot be listed, so they cannot be checked: {e}")
    except (RefShardError, OSError, ValueError) as e:
        found.add("error", "source", text=str(e) or type(e).__name__)
    else:
        cube = fs.source.open().cube
        for url, reason in ({} if cube is None else cube.document.lost).items():
            found.add("warning", "lost-set", url=url, text=f"it was not read when sets were joined: {reason}")
        for path, reason in fs.left_whole.items():
            if path in source.arrays:
                found.add("warning", "left-whole", path, text=f"its shards are left whole: {reason}")
            else:
                found.add("warning", "not-shown", path, text=f"it is not shown: {reason}")
        with show_progress("check", callback) as shown:
            return _Check(fs, source, found, shown).run(faults, mode, sample)
    return found.make_report(mode)


class _Check:
    """One check of a source that could be surveyed."""

    def __init__(self, fs: SurveyedFileSystem, source: Survey, found: Findings, callback: Callback) -> None:
        self._fs, self._source = fs, fs.source
        self._survey, self._found, self._callback = source, found, callback
        self._read = self._bytes = self._decoded = 0

    def run(self, faults: Sequence[Fault], mode: CheckMode, sample: int) -> Report:
        """Check everything; ``faults`` are the errors of the survey."""
        source, arrays = self._survey, list(self._survey.arrays.values())
        for key, error in faults:
            self._found.add_error(key, error, "metadata" if zarrmeta.is_metadata(key) else "unreadable")
        check_documents(source.documents, self._found)
        refused, notes = find_refusals(source)
        self._add_refusals(refused)
        self._check_names()
        wanted = _choose_chunks(arrays, mode, sample)
        self._callback.set_size(len(source.urls) + sum(len(positions) for _, positions in wanted))
        self._source.wait(self._check_targets)
        decodes = mode == "full" and is_installed("zarr")
        closed = {parent(refusal.key)[0] for refusal in refused if refusal.by in ("zarr", "codec")}
        for extents, positions in wanted:
            if len(positions):
                self._check_chunks(extents, positions, decodes=decodes and extents.path not in closed)
        return self._found.make_report(
            mode,
            keys=source.keys,
            arrays=len(arrays),
            chunks=sum(map(len, arrays)),
            missing=sum((e.possible or 0) - len(e) for e in arrays if e.meta.grid is not None and e.listed)
            - sum(_is_chunk(source, key) for key, _ in faults),
            targets=len(source.urls),
            read=self._read,
            bytes_read=self._bytes,
            decoded=self._decoded,
            notes=(_UNDECODED, *notes) if mode == "full" and not decodes else tuple(notes),
        )

    def _add_refusals(self, refused: Sequence[Refusal]) -> None:
        """Add arrays and groups that readers do not open, unless their metadata already has an error."""
        known = {finding.key for finding in self._found.shown if finding.severity == "error"}
        for by, key, text, is_certain in refused:
            if key not in known:
                severity: Severity = "error" if is_certain and by != "codec" else "warning"
                self._found.add(severity, {"zarr": "metadata", "codec": "not-decoded"}.get(by, by), key, text=text)

    async def _check_targets(self) -> None:
        """Request size and version of each target once, and compare the ranges of keys with them."""
        urls, found, ranges = self._survey.urls, self._found, Ranges(self._survey)
        sizes = np.full(len(urls), WHOLE, np.uint64)
        first, uses = ranges.count_rows()
        for batch in iterate_batches(range(len(urls)), STAT_TOGETHER):
            answers = await asyncio.gather(*(self._request_facts(i) for i in batch))
            for i, answer in zip(batch, answers, strict=True):
                key = ranges.get_key(int(first[i])) if first[i] >= 0 else ""
                match answer:
                    case Facts(size):
                        if size is None:
                            found.add("warning", "unsized", key, urls[i], "the size of its target is not known")
                        else:
                            sizes[i] = size
                        self._check_pins(i, answer, key)
                    case None if i in self._survey.optional:
                        continue
                    case None:
                        text = f"there is no such object; {format_count(int(uses[i]), 'reference')} to it"
                        found.add("error", "unreachable", key, urls[i], text)
                    case error:
                        found.add_error(key, error, "unreachable", urls[i])
        await self._check_servers(sizes)
        self._check_ranges(ranges, sizes)

    async def _request_facts(self, target: int) -> Facts | Exception | None:
        """Return size and version of a target, or the error of the request; None if the target does not exist."""
        url = self._survey.urls[target]
        try:
            if not url:
                return ValueError("the reference has no URL: pass target=, the URL for such references")
            answer: Facts | None = await self._source.engine().need(
                Stat(url, fresh=True, origin=self._survey.origins[target])
            )
            return answer
        except Exception as e:  # noqa: BLE001  # whatever the target's library raises, it becomes a finding
            return e
        finally:
            self._callback.relative_update()

    def _check_pins(self, target: int, facts: Facts, key: str) -> None:
        url = self._survey.urls[target]
        try:
            for pin in self._survey.pins.get(target, ()):
                Versions().of(url).observe(facts, pin)
        except TargetChanged as e:
            self._found.add("error", "changed", key, url, e.reason)

    async def _check_servers(self, sizes: UInt64s) -> None:
        """Request one byte from each web server of large files, and find servers that answer with the whole file."""
        urls = self._survey.urls
        large = [
            i for i in np.flatnonzero((sizes != WHOLE) & (sizes >= UNASKED)).tolist() if protocol_of(urls[i]) in WEB
        ]
        largest = {server_of(urls[i]): i for i in sorted(large, key=sizes.__getitem__)}
        for server, i in largest.items():
            with contextlib.suppress(OSError, RefShardError):  # unreadable objects have been reported already
                await self._source.engine().need(Head(urls[i], 1, self._survey.origins[i]))
            if self._source.stats.ignores_ranges(server):
                text = f"{server} {IGNORES_RANGES}. This file has {format_bytes(int(sizes[i]))}"
                self._found.add("warning", "no-ranges", url=urls[i], text=text)

    def _check_ranges(self, ranges: Ranges, sizes: UInt64s) -> None:
        """Find ranges that reach beyond their target, and ranges that share bytes."""
        beyond, (again, before, within, outer) = ranges.find_beyond(sizes), ranges.find_shared(sizes)
        ends = [f"reaches beyond the {size:,} bytes there are" for size in sizes[ranges.targets[beyond[:SHOWN]]]]
        same = [f"are also the bytes of {ranges.get_key(row)!r}" for row in before[:SHOWN]]
        inside = [f"begin within the bytes of {ranges.get_key(row)!r}" for row in outer[:SHOWN]]
        self._add_rows("error", "beyond-target", ranges, beyond, ends)
        self._add_rows("warning", "duplicate-range", ranges, again, same)
        self._add_rows("warning", "overlapping-range", ranges, within, inside)

    def _add_rows(self, severity: Severity, kind: str, ranges: Ranges, rows: Positions, texts: Sequence[str]) -> None:
        for row, text in zip(rows.tolist(), texts, strict=False):
            self._found.add(
                severity, kind, ranges.get_key(row), ranges.get_url(row), f"{ranges.format_range(row)} {text}"
            )
        self._found.count(kind, len(rows) - len(texts))

    def _check_names(self) -> None:
        """Find keys that look like chunk keys and lie outside of their array's grid."""
        for key in self._survey.rest.names:
            path, grid = _find_grid(self._survey, key)
            if grid is not None and CHUNK_NAME.fullmatch(make_relative(key, path)):
                shape = " × ".join(map(str, grid.counts)) or "one chunk"
                text = f"array {path!r} has no such chunk: its grid is {shape}"
                self._found.add("error", "outside-grid", key, text=text)

    def _check_chunks(self, extents: Extents, positions: Sequence[int], *, decodes: bool) -> None:
        """Read the chunks of an array at ``positions``; with ``decodes``, also decode them."""
        largest = int(extents.sizes.max()) or MEMORY // 16  # a guess, if all sizes are unknown
        for batch in iterate_batches(positions, max(1, min(TOGETHER, MEMORY // largest))):
            keys = extents.make_keys(batch)
            chunks: list[StoredChunk] = []
            for key, data in zip(keys, read_keys(self._fs, keys, self._callback.relative_update), strict=True):
                if isinstance(data, Exception):
                    self._found.add_error(key, data)
                else:
                    chunks.append((make_relative(key, extents.path), data))
            self._read += len(chunks)
            self._bytes += sum(len(data) for _, data in chunks)
            if decodes:
                decodes = self._decode(extents, chunks)

    def _decode(self, extents: Extents, chunks: Sequence[StoredChunk]) -> bool:
        """Decode chunks of an array; return False if this process cannot decode any chunk of the array."""
        is_safe = self._source.is_own or is_bounded(extents.meta)
        try:
            problems = Trial(extents.meta).find_problems(chunks, apart=not is_safe)
        except ValueError as e:
            text = f"its chunks were read, and not decoded: {e}"
            self._found.add("warning", "not-decoded", extents.path, text=text)
            return False
        for (tail, data), problem in zip(chunks, problems, strict=True):
            key = join(extents.path, tail)
            match problem:
                case None:
                    self._decoded += 1
                case NotDecoded():
                    text = f"it was read, and not decoded, because decoding it {problem}"
                    self._found.add("warning", "not-decoded", key, text=text)
                case _:
                    text = f"zarr cannot decode its {len(data):,} bytes: {problem}"
                    self._found.add("error", "undecodable", key, text=text)
        return True


def _choose_chunks(arrays: Sequence[Extents], mode: CheckMode, sample: int) -> list[tuple[Extents, Sequence[int]]]:
    """Return each array with the positions of the chunks to read."""
    if mode == "head":
        return []
    if mode == "full":
        return [(extents, range(len(extents))) for extents in arrays]
    ends = np.cumsum([len(extents) for extents in arrays], dtype=np.int64)
    total = int(ends[-1]) if arrays else 0
    chosen = np.unique(np.linspace(0, total - 1, min(sample, total)).round().astype(np.int64))
    parts: list[Any] = np.split(chosen, np.searchsorted(chosen, ends))[:-1]
    return [(e, (part - (end - len(e))).tolist()) for e, part, end in zip(arrays, parts, ends, strict=True)]


def _find_grid(source: Survey, key: str) -> tuple[str, ChunkGrid | None]:
    """Return the path and the grid of the array that ``key`` lies below."""
    path = find_array(key, source.arrays)
    extents = source.arrays.get(path)
    return path, None if extents is None else extents.meta.grid


def _is_chunk(source: Survey, key: str) -> bool:
    path, grid = _find_grid(source, key)
    return grid is not None and grid.number(make_relative(key, path)) is not None
