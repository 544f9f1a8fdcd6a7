"""The references of a source: as a mapping, as columns, as a set that is written elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.catalog import beneath, references_of
from refshard_fs.edited import EditedKeySpace, edited
from refshard_fs.edits import Edit
from refshard_fs.filesystem.committable import Committable
from refshard_fs.formats import RECORD_SIZE, SetFormat, format_named
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.overlay import Base, Overlay
from refshard_fs.shards.view import ShardView
from refshard_fs.targets import Given
from refshard_fs.writes.references import WritableReferences

if TYPE_CHECKING:
    from refshard_fs.manifests.reference_stream import Respell

__all__ = ["Savable"]


class Savable(Committable):
    """The references, with what was written and not committed."""

    _references: tuple[KeySpace, Mapping[str, Any]] | None

    @property
    def references(self) -> Mapping[str, Any]:
        """The references as the mapping that their expanded JSON would be: text, object, bytes or ``[url, ...]``.

        Opened to be written, a mutable one, with `flush`: what fsspec's ``LazyReferenceMapper`` is to kerchunk.
        """
        if self._overlay is not None:
            return self._writable_references(self._overlay)
        keyspace = self._opened()
        if self._references is None or self._references[0] is not keyspace:
            self._references = keyspace, references_of(keyspace, self._look)
        return self._references[1]

    def _writable_references(self, overlay: Overlay) -> MutableMapping[str, Any]:
        """Return the references, with what was written and not committed, as a mapping to write to."""
        known: tuple[KeySpace, Mapping[str, Any]] | None = None

        def base() -> Mapping[str, Any]:
            nonlocal known
            keyspace = beneath(self._opened())
            if known is None or known[0] is not keyspace:
                known = keyspace, references_of(keyspace, self._look)
            return known[1]

        return WritableReferences(self, base, lambda: overlay.edits)

    def save(
        self,
        url: str,
        format: SetFormat | None = None,
        record_size: int = RECORD_SIZE,
        overwrite: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        **storage_options: Any,
    ) -> None:
        """Write the references to ``url`` as a ``"parquet"`` or ``"json"`` set, or as ``"chunk-manifest"``.

        Without ``format`` the name says it: one in ``.json`` (or ``.json.gz``, ``.bz2``, ``.xz``,
        ``.zst``) makes it JSON, one in ``.zarr`` chunk manifests. Of a parquet set,
        ``record_size`` is the number of references per file. It goes to a new or empty
        directory, or with ``overwrite`` in the place of another parquet set; JSON replaces
        what was there. Each file appears whole or not at all. Chunk manifests make a zarr
        version 3 hierarchy, and the metadata of version 2 become that of version 3. URLs keep
        their meaning. Of sources other than reference sets, chunks that are ranges of objects
        (of sharded arrays, the shards) become references. What was written and not committed
        is part of it.

        Raises ManifestError, which names the key, where the format cannot hold a reference,
        and TargetNotAllowed where the source may not point to what it does: then nothing is
        written. fsspec's own reader takes parquet sets of zarr version 2
        with ``.`` between coordinates. ``callback`` counts the chunks that arrays may have.
        """
        from refshard_fs.save import save  # as in `commit`

        kind = format or format_named(url)
        whole, spelled = self._respelling(), self._respelling(None if kind == "chunk-manifest" else url)

        def respell(written: str | None) -> str | None:
            self.admit([whole(written)])  # what is written here is the user's own, and trusted
            return spelled(written)

        save(self._stored(), self._look, url, kind, record_size, overwrite, respell, storage_options, callback)
        self._entrust()

    def save_json(self, url: str, **storage_options: Any) -> None:
        """Write the references as a JSON set to ``url``."""
        self.save(url, "json", **storage_options)

    def collect(self) -> ReferenceSet:
        """Return the references in columns, URLs absolute and shards whole; `refshard_fs.concat` and others use it."""
        from refshard_fs.collecting import collect  # as in `commit`

        found = collect(self._stored(), self._look, self._respelling())
        self._entrust()
        return found

    def pinned(self, inline_threshold: int, *, flatten: bool, callback: Callback = DEFAULT_CALLBACK) -> ReferenceSet:
        """Return the references pinned to what their targets are now; `refshard_fs.snapshot` uses it."""
        from refshard_fs.collecting import pin  # as in `commit`

        shard_options = self._session.options.open.shard_options if flatten else None
        tell = callback.relative_update
        found = pin(self._stored(), self._look, self._respelling(), inline_threshold, shard_options, tell)
        self._entrust()
        return found

    def admit(self, urls: Iterable[str | None]) -> None:
        """Raise TargetNotAllowed if the source may not point to all of ``urls``: what is made of it is the user's."""
        self._session.admit(url for url in urls if url is not None)

    def base(self) -> Base:
        """Return the source as it was opened, below the edits; `refshard_fs.append` uses it."""
        overlay = self._writing("append")
        self._opened()
        assert overlay.base is not None, "whoever opens the source shares it"
        return overlay.base

    def given(self, url: str) -> Given:
        """Return the filesystem instance, or the options for one, that ``url`` is opened with."""
        return self._session.given(url)

    def edit(self, path: str, edit: Edit) -> None:
        """Let ``path`` refer to a range of an object, hold data, or be gone; nothing is copied, or looked at."""
        key = self._key(path)
        self._writing(f"write {key!r}").put(key, edit)
        self._session.wrote(key)

    def _stored(self) -> KeySpace:
        """Return the keys that are stored, and would be after a commit: those of shards, not of inner chunks."""
        keyspace = self._opened()
        match keyspace:
            case EditedKeySpace(base=ShardView() as view, edits=edits) if len(edits) and self._overlay is not None:
                from refshard_fs.writes.shard_edits import shard_edits  # as in `commit`

                values = self._writer_over(self._overlay, self.base())
                return edited(view.base, shard_edits(view, edits, self._look, self._overlay, values))
        return keyspace

    def _entrust(self) -> None:
        if self._overlay is not None:
            self._overlay.entrust()

    def _respelling(self, url: str | None = None) -> Respell:
        """Return how URLs of the source are spelled in a set at ``url``; absolute, without one."""
        from refshard_fs.save import respelling  # as in `commit`

        options = self._session.options
        return respelling(options.open, options.source if isinstance(options.source, str) else None, url)
