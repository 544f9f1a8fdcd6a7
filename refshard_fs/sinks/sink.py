"""The contract of a sink, a format in which sets are written. Other packages need no more than this.

A package defines one subclass of `Sink`, and names an instance of it (not the class) by an entry point in the group
``refshard.sinks``. Then ``fs.save(url, format=NAME)`` writes it, where NAME is the sink's ``name``:

    def write(self, references, destination):
        with destination.objects.stream() as file:  # binary; nothing appears if the block ends with an error
            for key, value in references.documents():  # metadata: text, JSON values or bytes
                ...
            for array, grid in references.grids.items():
                for numbers, chunks in references.partitions(array, 10_000):
                    for row in chunks.present():
                        key = join(array, grid.tail(numbers[row]))  # core.keys.join
                        found = chunks.value(row)  # bytes, or a range of the target chunks.urls[found.target]

`references.stream.ReferenceStream` and `core.chunks.Chunks` say the rest of what a sink is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from refshard_fs.references.stream import ReferenceStream
from refshard_fs.security.origins import Origins
from refshard_fs.stores.document import Document
from refshard_fs.stores.objects import Objects


class Destination(msgspec.Struct, frozen=True):
    """Where a set goes, and how.

    - ``url``: as the user gave it.
    - ``objects``: the objects at and below it; each appears complete or not at all. Or the one object there.
      A set of one object is written to ``objects.stream()``, which both have; a directory, to
      ``objects.directory(replaces=overwrite)``: write the object that readers open first last. In an object store, a
      set is replaced by one PUT of it, if other objects have names that the replaced set has not, such as a UUID.
    - ``record_size``: the references of a file, for sinks that write several.
    - ``overwrite``: whether a set that is there already is replaced. Otherwise a sink that writes a directory raises
      FileExistsError.
    - ``options``: fsspec's options of ``url``.
    - ``settings``: the user's values for the sink's own `Sink.settings`.
    - ``origins``: returns which URLs sets of others named. It is to be called after all chunks were written.
    """

    url: str
    objects: Objects | Document
    record_size: int
    overwrite: bool
    origins: Callable[[], Origins]
    options: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}


class Sink(ABC):
    """Writes sets of references in one format. One instance serves all sets, on any thread."""

    name: ClassVar[str]  # the value of ``format=``
    # Whether it holds versions and checksums of single chunks. Without it, the chunks have none.
    holds_versions: ClassVar[bool] = False
    # Whether a URL may be relative to the set's own directory, as the source spelled it. Without it, all are absolute.
    holds_relative_urls: ClassVar[bool] = False
    # Whether it takes chunks that are not a range of a target (`Chunks.packed`), and reads their bytes by
    # `ReferenceStream.read`. Without it, they come as bytes, or as references to copies beside the set.
    holds_packed: ClassVar[bool] = False
    # Whether each reference must have a length. Without it, `core.columns.WHOLE` stands for the whole target.
    needs_lengths: ClassVar[bool] = False
    # The names of further arguments of ``fs.save`` that the sink takes.
    settings: ClassVar[Sequence[str]] = ()

    def passes(self, references: ReferenceStream) -> int:
        """Return how often `write` goes through all chunks, for progress."""
        return 1

    @abstractmethod
    def write(self, references: ReferenceStream, destination: Destination) -> str | None:
        """Write a set: its ``documents()``, then the ``partitions()`` of each of the arrays in ``grids``.

        Return a line about the copied bytes, if any. ManifestError, which names the key, where the format
        cannot hold a reference. Nothing is left behind then.
        """
