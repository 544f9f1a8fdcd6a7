"""The interface of a sink, a format in which sets are written.

A package defines one subclass of `Sink`, and names an instance of it (not the class) by an entry point in the group
``refshard.sinks``. Then ``fs.save(url, format=NAME)`` writes it, where NAME is the sink's ``name``:

    def write(self, references, destination):
        with destination.objects.stream() as file:  # binary; nothing appears if the block ends with an error
            for key, value in references.documents():  # metadata: text, JSON values or bytes
                ...
            for array, grid in references.grids.items():
                for numbers, chunks in references.partitions(array, 10_000):
                    for row in chunks.list_present():
                        key = join(array, grid.tail(numbers[row]))  # core.keys.join
                        found = chunks.get_value(row)  # bytes, or a range of the target chunks.urls[found.target]

`references.stream.ReferenceStream` and `core.chunks.Chunks` describe the arguments in full.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from refshard_fs.references.stream import ReferenceStream
from refshard_fs.security.origins import Origins
from refshard_fs.stores.document import DocumentObject
from refshard_fs.stores.objects import Objects


def _find_no_options(url: str) -> Mapping[str, Any]:
    return {}


class Destination(msgspec.Struct, frozen=True):
    """The place where a sink writes a set, and the user's arguments.

    - ``url``: the URL as the user spelled it.
    - ``objects``: the objects at and below the URL, each of which appears complete or not at all; or the one object
      there. Write a set of one object to ``objects.stream()``, which both have; write a directory to
      ``objects.directory(replaces=overwrite)``, and last of all the object that readers open first. In an object store,
      the PUT of this object replaces a set, if the other objects have names that the replaced set lacks, such as UUIDs.
    - ``record_size``: the references per file, for sinks that write several files.
    - ``overwrite``: whether an existing set is replaced. Otherwise a sink that writes a directory raises
      FileExistsError.
    - ``options``: fsspec's options of ``url``.
    - ``settings``: the user's values for the sink's own `Sink.settings`.
    - ``origins``: a function that returns which URLs come from sets of others. Call it after all chunks are written.
    - ``find_options``: a function that returns fsspec's options for the URL of a target, or the target's filesystem.
    """

    url: str
    objects: Objects | DocumentObject
    record_size: int
    overwrite: bool
    origins: Callable[[], Origins]
    options: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    find_options: Callable[[str], Any] = _find_no_options


class Sink(ABC):
    """Write sets of references in one format. One instance serves all sets, on any thread.

    A subclass has a ``name``, and changes these attributes if its format can hold more than ranges of targets:

    - ``name``: the value of ``format=``.
    - ``holds_versions``: whether the format holds versions of targets (`Chunks.pins`), and versions and checksums of
      single chunks (`Chunks.checks`). If False, the chunks have no checks.
    - ``holds_relative_urls``: whether a URL may be relative to the set's own directory, as the source spelled it. If
      False, all are absolute.
    - ``holds_packed``: whether `write` takes chunks that are not a range of a target (`Chunks.packed`), and reads their
      bytes by `ReferenceStream.read`. If False, they come as bytes, or as references to copies beside the set.
    - ``needs_lengths``: whether each reference must have a length. If False, the length `core.columns.WHOLE` means that
      the chunk reaches to the end of the target.
    - ``settings``: the names of further arguments of ``fs.save`` that the sink takes.
    """

    name: ClassVar[str]
    holds_versions: ClassVar[bool] = False
    holds_relative_urls: ClassVar[bool] = False
    holds_packed: ClassVar[bool] = False
    needs_lengths: ClassVar[bool] = False
    settings: ClassVar[Sequence[str]] = ()

    def passes(self, references: ReferenceStream) -> int:
        """Return how often `write` goes through all chunks, for progress."""
        return 1

    @abstractmethod
    def write(self, references: ReferenceStream, destination: Destination) -> str | None:
        """Write a set: its ``documents()``, then the ``partitions()`` of each of the arrays in ``grids``.

        Return a line about copied bytes, or None. ManifestError, which names the key, if the format cannot hold a
        reference: no object must remain then.
        """
