"""A cube in memory: a document that names the joined sets, which are opened when they are read."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core.stats import format_count
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.reading.read_ranges import ReadRanges
from refshard_fs.sets.make_choice import make_choice
from refshard_fs.sets.opened_set import FileSystemLike
from refshard_fs.sets.save_set import advise_refused_writer, save_set
from refshard_fs.source.in_memory_source import InMemorySource
from refshard_fs.source.normalizing import parse_options
from refshard_fs.source.options import RECORD_SIZE, check_spelling
from refshard_fs.source.settings import check_set_name, format_by_suffix
from refshard_fs.source.source import Source
from refshard_fs.tools.views import render_folded, render_table, render_view
from refshard_fs.writing.cube_document import REMARK, make_cube_document, save_document

OTHERS: Final = "For other programs, save it as .icechunk, or serve it (refshard serve)"
_OF_REFERENCES: Final = (".zarr", ".parquet", ".parq")  # suffixes of sets that are directories
_ACCESS: Final = frozenset(["fs", "options", "remote_options", "remote_protocol"])  # arguments that open parts


class LazySet(InMemorySource, frozen=True, eq=False, weakref=True):
    """A document that joins sets: an ``fo`` for `RefShardFileSystem`. Immutable; its URLs are absolute.

    ``remark`` says why other programs cannot read the document, and ``joined`` describes it in a few words. Filesystems
    of this set open its parts with the arguments ``opened_with``, and do not request ``ranges`` again: joining has
    read the beginnings of the parts, and the metadata behind these, with the chunks between them. A saved document has
    neither the arguments nor the bytes; a pickle has only the arguments.
    """

    remark: str
    joined: str = "joined sets"  # earlier pickles have no text
    opened_with: Mapping[str, Any] = {}
    ranges: ReadRanges | None = None

    def get_arguments(self) -> Mapping[str, Any]:
        """Return the arguments that opened the sources of this set: filesystems of this set use them, too."""
        return self.opened_with

    def read_ranges(self) -> ReadRanges | None:
        """Return the bytes of the joined sets that joining has read."""
        return self.ranges

    @property
    def title(self) -> str:
        """A few words about the joined sets."""
        return self.joined

    @property
    def document(self) -> ConcatDocument:
        """The parsed document."""
        assert isinstance(self.content, bytes), "a document that joins sets is bytes"
        return ConcatDocument.read(self.content, self.joined)

    @property
    def urls(self) -> list[str]:
        """The URLs of all parts, also of those in nested documents."""
        return self.document.urls

    def __len__(self) -> int:
        """Return the number of parts."""
        return self.document.count

    def save(
        self,
        url: str,
        format: str | None = None,
        record_size: int = RECORD_SIZE,
        overwrite: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        **storage_options: Any,
    ) -> str:
        """Write the document to ``url``, in which URLs of parts below its directory are relative.

        With ``format``, or a name that ends with ``.icechunk``, it is written in a format that other programs read,
        too: see `RefShardFileSystem.save`. Return one line: why only this package can read it, or which bytes were
        copied. Readers never see an unfinished file.
        """
        check_spelling(storage_options, LazySet.save)
        if format is not None or format_by_suffix(url) == "icechunk":
            source = Source.of(parse_options(self))
            return save_set(source, None, url, format, record_size, overwrite, callback, storage_options) or ""
        check_document_name(url)
        with advise_refused_writer(url):
            save_document(self.document, url, storage_options)
        return self.remark

    def __repr__(self) -> str:  # has the digest, which distinguishes instances for fsspec
        document = self.document
        gaps = sum(piece.is_gap for piece in document.pieces)
        lacks = f", {format_count(gaps, 'gap')}" if gaps else ""
        lacks += f", {format_count(len(document.lost), 'set')} not read" if document.lost else ""
        return f"<{self.joined}, {document.dim} {document.starts[-1]:,}{lacks}: {self.digest[:32]}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        document = self.document
        dim, total = document.dim, len(document.pieces)
        starts = document.starts
        rows = ((piece.name, f"{starts[i]:,}", f"{piece.length:,}") for i, piece in enumerate(document.pieces))
        arrays = ((path or "/", str(axis)) for path, axis in sorted(document.axes.items()))
        return render_view(
            self.joined,
            f"{dim} {starts[-1]:,}",
            render_table(("set that was not read", "why"), list(document.lost.items()), most=10),
            render_table(("set", "starts at", "length"), rows, right=["starts at", "length"], most=10, total=total),
            render_folded(
                format_count(len(document.axes), "joined array"),
                render_table(("array", "axis"), arrays, right=["axis"], total=len(document.axes)),
            ),
        )

    def select(self, **arguments: Any) -> LazySet:
        """Return a set that shows a part of this one: the arguments are those of `RefShardFileSystem.select`.

        Sets that lie outside of a range along the joined dimension are left out of the document, so that a range of
        times is a smaller set. Arrays that are not joined then come from the first remaining set; if that set lacks one
        of them, all sets stay in the document.

        >>> import tempfile, xarray, refshard_fs
        >>> folder = tempfile.mkdtemp()
        >>> for day in range(3):
        ...     ds = xarray.Dataset({"sst": ("day", [20.0 + day])}, {"day": [day]})
        ...     ds.to_netcdf(f"{folder}/{day}.nc", engine="h5netcdf")
        >>> part = refshard_fs.open(f"{folder}/*.nc").select(sel={"day": slice(1, 2)}, rename={"sst": "t"})
        >>> len(part), xarray.open_dataset(part, engine="refshard")["t"].values
        (2, array([21., 22.]))
        """
        choice = make_choice(Source.of(parse_options(self)), self, **arguments)
        selected = Source.of(parse_options(self, {"select": [choice.to_json()]}))
        selected.open()  # raises if a name does not exist
        choice = selected.options.select[-1]
        document = self.document
        shorter, left = _shorten(selected, document, choice)
        part = self._make_set(shorter, left)
        has_other_first = shorter.pieces[shorter.first] is not document.pieces[document.first]
        if has_other_first and _list_documents(Source.of(parse_options(part))) != _list_documents(selected):
            return self._make_set(document, choice)
        return part

    @classmethod
    def of(cls, opened: FileSystemLike) -> LazySet | None:
        """Return the cube that a filesystem shows, with absolute URLs; None if it shows another source.

        Raise TargetNotAllowed if the document is not the user's own, and names a URL that the user may not take over.
        """
        document = make_cube_document(opened.source)
        if document is None:
            return None
        data = document.dumps(opened.source.open().cube.resolve)
        access = {name: value for name, value in opened.storage_options.items() if name in (*_ACCESS, "allow")}
        return cls(data, hashlib.sha256(data).hexdigest(), REMARK, document.summary, access)

    def _make_set(self, document: ConcatDocument, choice: Choice) -> LazySet:
        if choice != Choice():
            document = msgspec.structs.replace(document, view=(*document.view, choice))
        data = document.dumps()
        digest = hashlib.sha256(data).hexdigest()
        return LazySet(data, digest, self.remark, document.summary, self.opened_with, self.ranges)

    def respell_urls(self, respell: Callable[[str], str]) -> LazySet:
        """Return the set with other URLs."""
        data = self.document.dumps(respell)
        return LazySet(data, hashlib.sha256(data).hexdigest(), self.remark, self.joined, self.opened_with)

    def __reduce__(self) -> tuple[Any, ...]:
        return LazySet, (self.content, self.digest, self.remark, self.joined, self.opened_with)


def _list_documents(source: Source) -> set[str]:
    return set(source.run("", lambda: source.open().documents()))


def check_document_name(url: str) -> None:
    """Raise ValueError unless the document of a cube may have the name ``url``, by its suffix."""
    check_set_name(url)
    if url.lower().endswith(_OF_REFERENCES):
        raise ValueError(
            f"expected a name such as all.refshard or all.json for the document of a cube, got {url!r}: "
            f"format={format_by_suffix(url)!r} writes references instead, and copies the chunks that are converted"
        )


def _shorten(source: Source, document: ConcatDocument, choice: Choice) -> tuple[ConcatDocument, Choice]:
    """Return a document without the pieces that ``choice`` leaves out, and the choice to apply to this document."""
    dim, starts = document.dim, document.starts
    if dim not in choice.isel or document.view or document.beside:
        return document, choice
    start, stop, _ = slice(*choice.isel[dim]).indices(starts[-1])
    first, last = bisect_right(starts, start) - 1, bisect_left(starts, stop)
    if stop <= start or all(piece.is_gap for piece in document.pieces[first:last]):
        return document, choice
    metadata = document.metadata
    if document.first not in range(first, last):
        joined = source.open().cube
        assert joined is not None, "the source is a document"
        metadata = source.run("", joined.read_first_documents)
    isel = {name: bounds for name, bounds in choice.isel.items() if name != dim}
    if (start, stop) != (starts[first], starts[last]):
        isel[dim] = (start - starts[first], stop - starts[first])
    shorter = msgspec.structs.replace(document, pieces=document.pieces[first:last], metadata=metadata)
    return shorter, msgspec.structs.replace(choice, isel=isel)
