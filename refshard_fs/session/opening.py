"""A source that is opened once, whoever asks first, and opened anew when it became another one."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Collection, Iterable

import msgspec

from refshard_fs.core.edited_keyspace import EditedKeySpace
from refshard_fs.core.edits import Edits
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts, Load, Packed, Span, Stat
from refshard_fs.core.overlay import Base
from refshard_fs.errors import NoSuchSource, RefShardError, SourceNotReachable, TargetChanged, redacted
from refshard_fs.reading.failures import said
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.session import recognition as catalog
from refshard_fs.session.arrays import Arrays
from refshard_fs.session.engines import INDEXES, Engines
from refshard_fs.session.in_memory_source import Held
from refshard_fs.session.options import SessionOptions

__all__ = ["Opening"]


class Opening(Engines):
    """The key space of a source, with what was written over it."""

    _arrays: Arrays

    def __init__(self, options: SessionOptions) -> None:
        super().__init__(options)
        self.format = "references"  # those at hand; what another source is recognised as, once it is opened
        self._opening: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[KeySpace]]
        self._opening = weakref.WeakKeyDictionary()
        self._keyspace: KeySpace | None = None
        self._forgotten = 0  # how often

    async def keyspace(self) -> KeySpace:
        """Return the opened source; concurrent callers open it once."""
        if self._keyspace is not None:
            return self._keyspace
        loop = asyncio.get_running_loop()
        task = self._opening.get(loop)
        if task is None or task.done():
            task = self._opening[loop] = loop.create_task(self._open())
        return await asyncio.shield(task)

    def opened(self) -> KeySpace | None:
        """Return the key space if it has been opened, or can be without I/O."""
        if self._keyspace is not None:
            return self._keyspace
        overlay = self.options.overlay
        opening = self._openings
        base = None if overlay is None else overlay.base
        if base is not None:
            self._adopt(base, opening)
        elif isinstance(self.options.source, Held):
            content = self.options.source.content
            if isinstance(content, ReferenceSet):
                found = self.look_now("", catalog.open_references(content, self._how()))
                if found is not None:
                    self._adopt(Base(found.value, found.value.urls, None), opening)
        return self._keyspace

    def opened_now(self) -> KeySpace | None:
        """Return the key space as `opened`, or open it if no event loop is needed for that; for callers that block."""
        keyspace = self.opened()
        options, source = self.options, self.options.source
        if keyspace is not None or not isinstance(source, str) or options.fallback or options.overlay is not None:
            return keyspace
        if protocol_of(source) not in (None, *LOCAL):
            return None
        opening = self._openings
        INDEXES.discard((options.token, Stat(source)))
        steps = catalog.open_source(source, options.open, options.format, self._recognised)
        try:
            found = self._at_once_reader().run(steps)
        except RefShardError:  # the event loop finds out again, and says what is wrong
            return None
        if found is not None:
            self._adopt(Base(found.value, (), None), opening)
        return self._keyspace

    async def _open(self) -> KeySpace:
        while True:
            opening = self._openings
            keyspace = self.opened()
            if keyspace is not None:
                return keyspace
            self._adopt(await self._open_source(), opening)

    async def _open_source(self) -> Base:
        options = self.options
        match options.source:
            case str(url):
                if protocol_of(url) in (None, *LOCAL):  # a file is cheap to look at, and may be a new one
                    INDEXES.discard((options.token, Stat(url)))
                steps = catalog.open_source(url, self._how(), options.format, self._recognised)
            case Held(bytes(data)):
                steps = catalog.open_bytes(data, self._how(), options.format, self._recognised)
            case Held(ReferenceSet() as refs):
                steps = catalog.open_references(refs, self._how())
            case held:
                raise TypeError(f"{held!r} is no source")
        try:
            keyspace = await self.engine().run(steps)
            urls, objects = await self._some_urls(keyspace), keyspace.url_of
            return Base(keyspace, urls, *await self._document(keyspace), objects)
        except TargetChanged:
            if options.overlay is None:
                raise
            INDEXES.clear()  # what the process remembered of it is of another time
            self.forget()
            return await self._open_source()
        except NoSuchSource:
            if options.overlay is None or not isinstance(options.source, str):
                raise
            return Base(catalog.empty(options.source, self._how()), (), None, options.source)
        except RefShardError:
            raise
        except Exception as e:  # raised again: a FileNotFoundError would make every key look missing
            reason = said(e, of_source=True)
            raise SourceNotReachable(redacted(f"{options.source} cannot be opened: {reason}")) from e

    async def _document(self, keyspace: KeySpace) -> tuple[Facts | None, str]:
        """Return what a target says of the document that a commit replaces (it is as it was opened), and its URL."""
        url = keyspace.document_url if isinstance(self.options.source, str) else None
        if url is None or self.options.overlay is None:
            return None, ""
        facts: Facts | None = await self.engine().need(Stat(url, fresh=True))
        return facts, url

    def _how(self) -> OpenOptions:
        """Return how the source is to be opened: arrays that were written here as sharded ones stay what they were."""
        overlay, options = self.options.overlay, self.options.open
        return msgspec.structs.replace(options, whole=overlay.whole) if overlay is not None else options

    def _recognised(self, format: str) -> None:
        self.format = format

    async def _some_urls(self, keyspace: KeySpace) -> Iterable[str | None]:
        """Return URLs that the references name, if they are of use; a set that is read lazily has to look for some."""
        if not self.options.fallback:
            return ()
        return await self.engine().run(keyspace.some_urls())

    @property
    def _openings(self) -> int:
        """How often the source was to be opened anew."""
        overlay = self.options.overlay
        return self._forgotten if overlay is None else overlay.openings

    def _adopt(self, base: Base, opening: int) -> None:
        """Take the source as opened, unless there is another one by now; who shares an overlay shares the source."""
        overlay = self.options.overlay
        if overlay is not None:
            overlay.share(base, opening, self._take)
            return
        with self._lock:
            if opening == self._forgotten:
                self._take(base, None)

    def _take(self, base: Base, edits: Edits | None) -> None:
        """Read ``base``, edited. Options without a protocol go to the first that its references name."""
        if self.options.fallback:
            protocol = next(filter(None, map(protocol_of, filter(None, base.urls))), None)
            if protocol is not None and protocol not in self._pool_options.by_protocol:
                known = {**self._pool_options.by_protocol, protocol: self.options.fallback}
                admission = self._pool_options.admission.naming(protocol)
                self._pool_options = msgspec.structs.replace(self._pool_options, by_protocol=known, admission=admission)
                for engine in self._engines.values():
                    engine.pool = self._pool(engine.pool.loop)
        self._keyspace = base.keyspace if edits is None else EditedKeySpace(base.keyspace, edits)

    def invalidate(self) -> None:
        """Forget every index, the opened source, and which versions were read; the next read opens it again."""
        if self.options.overlay is not None:
            self.options.overlay.reopen()
        self.forget()
        INDEXES.clear()

    def replaced(self, urls: Collection[str]) -> None:
        """Take note that these objects are others now: what is remembered of their content is of no use."""
        INDEXES.discard_where(lambda key: _url_of(key) in urls)

    def wrote(self, key: str) -> None:
        """Take note that metadata is not what it was."""
        self._arrays.clear()

    def forget(self) -> None:
        """Forget the opened source, and which versions were read; indexes are used if they are of the same version."""
        with self._lock:
            self._forgotten += 1
            self._keyspace = None
            self._arrays.clear()
            self._opening.clear()
            self._clear()

    def _after_fork(self) -> None:
        super()._after_fork()
        self._opening = weakref.WeakKeyDictionary()


def _url_of(key: object) -> str | None:
    """Return the URL of the object that what is remembered under ``key`` was made from."""
    match key:
        case (_, Load(Span(url) | Packed(Span(url))) | Stat(url)):
            return url
    return None
