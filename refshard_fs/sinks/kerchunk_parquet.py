"""Kerchunk's references as parquet files: a file for each ``record_size`` chunks of an array."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.partition import PartitionHistory, require_pyarrow
from refshard_fs.formats.kerchunk_parquet.source import Layout, is_partition, make_partition_name
from refshard_fs.formats.kerchunk_parquet.writing import (
    add_origins,
    encode_partition,
    make_document,
    make_layout_document,
)
from refshard_fs.references.stream import ReferenceStream
from refshard_fs.sinks.replace_remote_set import SetDirectory, replace_remote_set
from refshard_fs.sinks.sink import Destination, Sink
from refshard_fs.stores.objects import Objects

TOGETHER: Final = 16  # partitions that are written at a time
FEW: Final = 100  # if an array has at most this many partitions, empty ones are written, too


class ParquetSink(Sink):
    """Write a directory of parquet files, which cannot hold pins."""

    name = "parquet"
    holds_relative_urls = True

    def passes(self, references: ReferenceStream) -> int:
        return 2 if references.in_memory else 1  # the first of two checks whether parquet can hold all references

    def write(self, references: ReferenceStream, destination: Destination) -> None:
        objects, size = destination.objects, destination.record_size
        assert isinstance(objects, Objects), "a set of several files"
        if size < 1:
            raise ValueError(f"invalid record_size={size}: expected at least 1")
        require_pyarrow()
        if references.pins() is not None:
            raise ManifestError(
                "these references are pinned (size, ETag and time of their targets), which a parquet set cannot hold: "
                "save them as JSON or as chunk manifests, or without pins: refshard_fs.rebase(source, {}).unpinned()"
            )
        document = make_layout_document(references.documents(), size)  # raises ManifestError before any write
        if references.in_memory:
            for array, grid in references.grids.items():
                for numbers, partition in references.partitions(array, size):
                    encode_partition(array, grid, numbers, partition, dry=True)
        names = objects.list_names()
        replaced = _find_replaced(objects, names, overwrite=destination.overwrite)
        # Readers with the replaced set open recognise partitions of the new set by their generation.
        generation = 0 if replaced is None else replaced.generation + 1
        written = None if replaced is None else PartitionHistory(generation)
        if replaced is None and names and not objects.is_local:
            objects.remove_tree()  # the remains of a save that was killed
        if replaced is None or objects.is_local:
            is_replaced = bool(names) and objects.is_local
            directory: AbstractContextManager[SetDirectory] = objects.directory(replaces=is_replaced)
        else:
            directory = replace_remote_set(objects, generation)
        with directory as target:
            files: dict[str, bytes] = {}
            for array, grid in references.grids.items():
                for numbers, partition in references.partitions(array, size, FEW):
                    data = encode_partition(array, grid, numbers, partition, written)
                    files[make_partition_name(array, numbers.start // size)] = data
                    if len(files) == TOGETHER:
                        target.put_all(files)
                        files = {}
            target.put_all(files)
            document = add_origins(document, destination.origins())
            if replaced is not None:
                document = make_document(document, uuid.uuid4().hex, generation, {})
            target.put_all({PARQUET: document})  # last: readers open this document first


def _find_replaced(objects: Objects, names: Sequence[str], *, overwrite: bool) -> Layout | None:
    """Return the parquet set to replace; None if the directory is empty, or has only the remains of a killed save.

    ``names`` are the names of the objects in it. FileExistsError if there is anything else.
    """
    if not names:
        return None
    if not overwrite:
        raise FileExistsError(f"{objects.url} is not empty: overwrite=True replaces a parquet set")
    expected = f"{objects.url}: expected an empty directory or a parquet set"
    remedy = "remove the directory, or give another place"
    if PARQUET not in names:
        if all(map(is_partition, objects.find(""))):
            return None
        raise FileExistsError(f"{expected}, found {', '.join(sorted(names)[:3])}: {remedy}")
    try:
        return Layout(objects.read([PARQUET])[PARQUET], f"{objects.url}/{PARQUET}")
    except ManifestError as e:
        raise FileExistsError(f"{expected}, found another {PARQUET} ({e}): {remedy}") from e
