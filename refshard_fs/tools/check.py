"""Check a whole source before others rely on it: its metadata, the ranges that it names, and the objects they lie in.

Nothing passes for right that was not looked at: a report says how much was read and decoded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, get_args

import numpy as np
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core import zarrmeta
from refshard_fs.errors import NotListable, RefShardError
from refshard_fs.tools.check_metadata import Trial, check_documents, has_zarr
from refshard_fs.tools.check_targets import Ranges, check_targets
from refshard_fs.tools.findings import CheckMode, Finding, Findings, Report
from refshard_fs.tools.survey import Extents, Fault, Survey, Surveyed, array_of, batches, contents, survey

__all__ = ["CheckMode", "Finding", "Report", "check"]

CHUNK_NAME: Final = re.compile(r"c|(?:c[/.])?\d+(?:[/.]\d+)*")
TOGETHER: Final = 1024  # chunks that are read at a time
MEMORY: Final = 1 << 26  # bytes of chunks that are read at a time, by their mean size


def check(
    fs: Surveyed, mode: CheckMode = "head", *, sample: int = 100, callback: Callback = DEFAULT_CALLBACK
) -> Report:
    """Check all of ``fs``: metadata, ranges, and one question to each target; data as ``mode`` says.

    ``"head"`` reads no chunk, ``"read"`` reads ``sample`` chunks that are evenly spaced over all there are, ``"full"``
    reads every chunk and, where zarr is installed, decodes it. What is wrong is in the report, and no exception.

    >>> import json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> fs = refshard_fs.RefShardFileSystem({"a/.zarray": json.dumps(meta), "a/0": "ab", "a/7": "cd"})
    >>> report = refshard_fs.check(fs)
    >>> report.missing, [(finding.kind, finding.key) for finding in report.findings]
    (1, [('outside-grid', 'a/7')])
    """
    if not hasattr(fs, "_session"):
        raise TypeError(f"check takes a filesystem, such as RefShardFileSystem({fs!r}), not {type(fs).__name__}")
    if mode not in get_args(CheckMode):
        raise ValueError(f"mode={mode!r}: it is 'head', 'read' or 'full'")
    if sample < 1:
        raise ValueError(f"sample={sample}: at least one chunk is read")
    found, faults = Findings(), list[Fault]()
    try:
        source = survey(fs, faults=faults)
    except NotListable as e:
        found.add("error", "not-listable", text=f"its keys cannot be listed, and so not be checked: {e}")
    except (RefShardError, OSError, ValueError) as e:
        found.add("error", "source", text=str(e) or type(e).__name__)
    else:
        for path, reason in fs.left_whole.items():
            found.add("warning", "left-whole", path, text=f"its shards are left whole: {reason}")
        return _Check(fs, source, found, callback).report(faults, mode, sample)
    return found.report(mode)


class _Check:
    """One check of a source that could be surveyed."""

    def __init__(self, fs: Surveyed, source: Survey, found: Findings, callback: Callback) -> None:
        self._fs, self._source, self._found, self._callback = fs, source, found, callback
        self._read = self._bytes = self._decoded = 0

    def report(self, faults: Sequence[Fault], mode: CheckMode, sample: int) -> Report:
        source, arrays = self._source, list(self._source.arrays.values())
        for key, error in faults:
            self._found.add_error(key, error, "metadata" if zarrmeta.is_metadata(key) else "unreadable")
        check_documents(source.documents, self._found)
        self._check_names()
        wanted = _wanted(arrays, mode, sample)
        self._callback.set_size(len(source.urls) + sum(len(positions) for _, positions in wanted))
        ranges = Ranges(source)
        self._fs._session.wait(check_targets, self._fs._session, ranges, self._found, self._callback)
        decodes = mode == "full" and has_zarr()
        batch = max(1, min(TOGETHER, MEMORY // ranges.mean_size(MEMORY // 16)))
        for extents, positions in wanted:
            self._check_chunks(extents, positions, decodes, batch)
        return self._found.report(
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
            notes=("zarr is not installed: chunks were read, and none was decoded",)
            if mode == "full" and not decodes
            else (),
        )

    def _check_names(self) -> None:
        """Find keys that look like chunks and are none of their array's grid."""
        for key in self._source.rest:
            extents = self._source.arrays.get(array_of(key, self._source.arrays))
            if extents is None or extents.meta.grid is None or not CHUNK_NAME.fullmatch(_tail(key, extents.path)):
                continue
            shape = " × ".join(map(str, extents.meta.grid.counts)) or "one chunk"
            text = f"array {extents.path!r} has no such chunk: its grid is {shape}"
            self._found.add("error", "outside-grid", key, text=text)

    def _check_chunks(self, extents: Extents, positions: Sequence[int], decodes: bool, batch: int) -> None:
        """Read the chunks of an array at ``positions``, and decode them."""
        trial = None
        if decodes and positions:
            try:
                trial = Trial(extents.meta)
            except ValueError as e:
                text = f"its chunks were read, and not decoded: {e}"
                self._found.add("warning", "not-decoded", extents.path, text=text)
        for some in batches(positions, batch):
            keys = extents.keys(some)
            for key, data in zip(keys, contents(self._fs, keys, self._callback.relative_update), strict=True):
                if isinstance(data, Exception):
                    self._found.add_error(key, data)
                    continue
                self._read += 1
                self._bytes += len(data)
                try:
                    if trial is not None:
                        trial.decode(_tail(key, extents.path), data)
                        self._decoded += 1
                except ValueError as e:
                    text = f"its {len(data):,} bytes are not what zarr decodes: {e}"
                    self._found.add("error", "undecodable", key, text=text)


def _wanted(arrays: Sequence[Extents], mode: CheckMode, sample: int) -> list[tuple[Extents, Sequence[int]]]:
    """Return the chunks to be read of each array, by their position."""
    if mode == "head":
        return []
    if mode == "full":
        return [(extents, range(len(extents))) for extents in arrays]
    ends = np.cumsum([len(extents) for extents in arrays], dtype=np.int64)
    total = int(ends[-1]) if arrays else 0
    chosen = np.unique(np.linspace(0, total - 1, min(sample, total)).round().astype(np.int64))
    parts: list[Any] = np.split(chosen, np.searchsorted(chosen, ends))[:-1]
    return [(e, (part - (end - len(e))).tolist()) for e, part, end in zip(arrays, parts, ends, strict=True)]


def _is_chunk(source: Survey, key: str) -> bool:
    extents = source.arrays.get(array_of(key, source.arrays))
    grid = None if extents is None else extents.meta.grid
    return extents is not None and grid is not None and grid.number(_tail(key, extents.path)) is not None


def _tail(key: str, array: str) -> str:
    return key[len(array) + 1 :] if array else key
