"""Replace a parquet set in an object store: the old set can be read until a single PUT shows the new one.

New objects have unique names, and the document that names them is put after them. Then objects get their usual names,
the objects of the old set are removed, and the document is put again, for other readers.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Protocol

from refshard_fs.core.keys import parent
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.source import find_partitions, make_partition_name
from refshard_fs.formats.kerchunk_parquet.writing import make_document
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.replaced_document import ReplacedDocument


class SetDirectory(Protocol):
    """A directory into which the files of a set are put, ``.zmetadata`` last."""

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Put several files, by name."""


@contextlib.contextmanager
def replace_remote_set(objects: Objects, generation: int) -> Iterator[SetDirectory]:
    """Yield a directory for the files of a parquet set that replaces the set at the URL of ``objects``.

    ``generation`` is the number of the new set. After an error before its document is put, its files are removed, and
    the old set stays.
    """
    replacement = _Replacement(objects, generation)
    try:
        yield replacement
    except BaseException:
        if replacement.is_unseen:
            objects.remove_all(replacement.names.values())
        raise


class _Replacement:
    """The files of a new parquet set."""

    def __init__(self, objects: Objects, generation: int) -> None:
        self._objects = objects
        self._generation = generation
        self._token = uuid.uuid4().hex
        self._document = ReplacedDocument(objects, PARQUET)
        self._replaced = set(objects.find("")) - {PARQUET}
        self.names: dict[str, str] = {}  # the unique names of partitions, by their usual names

    @property
    def is_unseen(self) -> bool:
        return self._document.is_unseen

    def put_all(self, files: Mapping[str, bytes]) -> None:
        if PARQUET in files:
            self._show(files[PARQUET])
            return
        new = {usual: f"{usual.removesuffix('parq')}{self._token}.parq" for usual in files}
        self.names |= new
        self._objects.put_all({new[usual]: data for usual, data in files.items()})

    def _show(self, document: bytes) -> None:
        """Put the document, then rename objects for readers that know only the usual names."""
        partitions: dict[str, dict[int, str | None]] = {
            array: dict.fromkeys(numbers) for array, numbers in find_partitions(self._replaced).items()
        }
        for array, numbers in find_partitions(self.names).items():
            names = {number: parent(self.names[make_partition_name(array, number)])[1] for number in numbers}
            partitions.setdefault(array, {}).update(names)
        now = int(time.time())
        self._document.put(
            make_document(document, self._token, self._generation, {}, partitions, now, is_for_us_alone=True)
        )
        try:
            self._objects.copy_all({name: usual for usual, name in self.names.items()})
            self._objects.remove_all(self._replaced.difference(self.names))
            self._document.put(document)
            self._objects.remove_all(self.names.values())
        except OSError as e:
            e.add_note(
                f"{self._objects.url} has the new set, whole. Other packages can read it after the next save or commit"
            )
            raise
