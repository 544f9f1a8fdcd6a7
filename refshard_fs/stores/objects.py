"""Put, list and remove whole objects below a URL, on condition of their versions if needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from glob import has_magic
from typing import BinaryIO, Final

from refshard_fs.core.model import ABSENT, Facts, Version
from refshard_fs.errors import ReadOnlyError, SourceNotReachable, sanitize
from refshard_fs.security.policy import leads_out, make_locator, protocol_of
from refshard_fs.stores.drafts import replace_directory, sync_file
from refshard_fs.stores.stale_drafts import lock_draft_directory, remove_stale_drafts
from refshard_fs.stores.store import Buffer, Condition, ObjectBytes, ObjectPlace, Store, find_facts
from refshard_fs.stores.stores import Stores
from refshard_fs.targets.credentials import InstanceOrOptions
from refshard_fs.targets.generic import list_protocols
from refshard_fs.targets.local import is_draft, make_draft_name

PUT_AT_ONCE: Final = 8  # the most objects that are put in parallel
SYNCED_ONE_BY_ONE: Final = 64  # syncing more files one by one takes longer than syncing the whole system


class Objects:
    """The objects below ``url``, in the ``stores`` of a source; usable from any thread.

    For a URL that the user gave, ``stores`` may be a filesystem, or options. The store is opened at the first use, and
    again in a forked process. The name ``""`` stands for the URL itself. Raises ValueError for a URL such as ``s3://``.
    """

    def __init__(self, url: str, stores: Stores | InstanceOrOptions) -> None:
        self.url = url.rstrip("/")
        if "://" in url[len(self.url) - 1 :]:
            raise ValueError(f"expected a URL with a bucket or a path, got {url!r}")
        self._url_of = make_locator(self.url)
        self._stores = stores if isinstance(stores, Stores) else Stores.of(self.url, stores)
        self._opened: tuple[int, Store, str] | None = None

    def url_of(self, name: str) -> str:
        """Return the URL of the object ``name``."""
        return self._url_of(name) if name else self.url

    def name_of(self, url: str) -> str | None:
        """Return the name of the object at ``url``; None if it is not below this URL."""
        is_below = url.startswith(self.url + "/") and not leads_out(url)
        return url[len(self.url) + 1 :] if is_below else None

    def is_at(self, url: str) -> bool:
        """Return whether ``url`` is the URL of these objects, perhaps in another spelling."""
        fs = self.store.fs
        has_protocol = (protocol_of(url) or "file") in list_protocols(fs)
        return has_protocol and str(fs._strip_protocol(url)).rstrip("/") == self.path("")

    @property
    def store(self) -> Store:
        """The store that holds the objects."""
        return self._open()[0]

    @property
    def is_local(self) -> bool:
        """Whether the objects are local files."""
        return self.store.is_local

    @cached_property
    def is_immediate(self) -> bool:
        """Whether requests need neither a network nor an event loop."""
        return self._stores.open_now(self.url) is not None

    def path(self, name: str) -> str:
        """Return the path of the object ``name`` in the filesystem; ReadOnlyError if it leads out of the directory.

        Names come from sets, which may have been downloaded.
        """
        root = self._open()[1]
        if ".." in name and ".." in name.replace("\\", "/").split("/"):
            raise ReadOnlyError(f"{sanitize(name)!r} lies outside {sanitize(self.url)}: expected a name without '..'")
        return f"{root}/{name}" if name else root

    def _place_of(self, name: str) -> ObjectPlace:
        return ObjectPlace(self.url_of(name), self.path(name), self.path(""))

    def check_places(self, names: Iterable[str]) -> None:
        """Raise PermissionError if the path of one of ``names`` has a link below the URL."""
        for folder in {name.rpartition("/")[0] for name in names}:
            self.store.resolve_links(self._place_of(f"{folder}/_" if folder else "_"))

    def lock(self, *, of_parent: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return the lock for a commit: among the threads of this process; for local files, among all processes.

        ``of_parent``: the URL names one file, so lock its directory.
        """
        return self.store.lock(self._place_of(""), of_parent=of_parent)

    def _open(self) -> tuple[Store, str]:
        known = self._opened
        if known is None or known[0] != os.getpid():
            known = self._opened = os.getpid(), *self._stores.open(self.url)
        return known[1], known[2]

    def get_facts(self, name: str) -> Facts | None:
        """Return the size and version of the object ``name``; None if it does not exist."""
        return self.store.get_facts(self.path(name))

    def find_version(self, name: str) -> Version:
        """Return the version of the object ``name``, which may be `ABSENT`."""
        return self.get_facts(name) or ABSENT

    def fetch(self, name: str) -> ObjectBytes | None:
        """Return the object ``name``; None if it does not exist, SourceNotReachable if bytes of it are missing."""
        try:
            found = self.store.fetch(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if found is not None and found.facts.size is not None and len(found.data) != found.facts.size:
            raise SourceNotReachable(
                f"expected the {found.facts.size} bytes of {self.url_of(name)}, got {len(found.data)}: another process "
                "may be writing it; try again when it has finished"
            )
        return found

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of the objects ``names``, requested in parallel."""
        paths = {self.path(name): name for name in names}
        return {paths[path]: data for path, data in self.store.read(list(paths)).items()}

    def find(self, below: str) -> dict[str, Facts]:
        """Return the facts of all objects but drafts below the directory ``below`` (empty: the URL), by name."""
        store, root = self._open()
        store.fs.invalidate_cache()
        try:
            found = store.call("find", self.path(below), detail=True)
        except FileNotFoundError:
            return {}
        stem = len(root) + 1
        objects = ((str(path), info) for path, info in found.items() if info.get("type") != "directory")
        return {path[stem:]: find_facts(info) for path, info in sorted(objects) if not is_draft(path)}

    def list_names(self) -> list[str]:
        """Return the names directly below the URL; none if it does not exist, FileExistsError if it is a file."""
        store, root = self._open()
        store.fs.invalidate_cache()
        try:
            paths = [str(path).rstrip("/") for path in store.call("ls", root, detail=False)]
        except FileNotFoundError:
            return []
        except NotADirectoryError as e:
            raise self._make_file_error() from e
        if paths == [root] and not store.call("isdir", root):
            raise self._make_file_error()
        return [path.rpartition("/")[2] for path in paths if path != root]

    def _make_file_error(self) -> FileExistsError:
        return FileExistsError(f"{self.url} is a file: expected a directory, or a URL where nothing exists")

    def check(self, name: str, condition: Condition) -> None:
        """Raise ConflictError if the object ``name`` does not meet ``condition``."""
        self.store.check(self._place_of(name), condition)

    def put(
        self, name: str, parts: Sequence[Buffer], condition: Condition = None, *, durable: bool = True
    ) -> Facts | None:
        """Write the concatenated ``parts`` as the object ``name``; return its new version, if the store reports it.

        Raises ConflictError, and changes nothing, if the object does not meet ``condition``. ``durable`` local files
        are on the disk when this returns.
        """
        self._sweep_drafts_of(name)
        return self.store.put(self._place_of(name), parts, condition, durable=durable)

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Put several objects, by name, in parallel. Local files are not synced to the disk."""
        with ThreadPoolExecutor(PUT_AT_ONCE) as pool:
            list(pool.map(lambda name: self.put(name, (objects[name],), durable=False), objects))

    def stream(
        self, name: str = "", condition: Condition = None, *, durable: bool = False
    ) -> contextlib.AbstractContextManager[BinaryIO]:
        """Yield a file that replaces the object ``name`` when the block ends without an error.

        ``condition`` and ``durable`` apply to local files only.
        """
        self._sweep_drafts_of(name)
        return self.store.stream(self._place_of(name), condition, durable=durable)

    def _sweep_drafts_of(self, name: str) -> None:
        """Remove the drafts that killed writers left beside the file at the URL; in a hierarchy, `sweep` does that."""
        if not name and self.is_local:
            remove_stale_drafts(*os.path.split(self.store.resolve_links(self._place_of(""))))

    def make_durable(self, urls: Iterable[str]) -> None:
        """Sync the objects at ``urls`` to the disk, if they are local files."""
        if not self.is_local:
            return
        paths = [self.path(name) for name in map(self.name_of, urls) if name is not None]
        if len(paths) > SYNCED_ONE_BY_ONE and hasattr(os, "sync"):
            os.sync()
            return
        for path in [*paths, *{os.path.dirname(path) for path in paths}]:
            sync_file(path)

    def copy(self, name: str, new: str) -> None:
        """Copy the object ``name`` to ``new``."""
        self.store.copy(self.path(name), self._place_of(new))

    def copy_all(self, names: Mapping[str, str]) -> None:
        """Copy several objects: ``names`` has the new name of each."""
        with ThreadPoolExecutor(PUT_AT_ONCE) as pool:
            list(pool.map(self.copy, names, names.values()))

    def remove(self, name: str, condition: Condition = None) -> None:
        """Remove the object ``name``, if it exists.

        Raises ConflictError, and changes nothing, if an existing object does not meet ``condition``.
        """
        self.store.remove(self._place_of(name), condition)

    def remove_all(self, names: Iterable[str]) -> None:
        """Remove the objects ``names``, and directories that become empty; objects that cannot be removed stay."""
        names = list(names)
        self.check_places(names)
        paths = [self.path(name) for name in names]
        together = [path for path in paths if not has_magic(path)]
        alone = [path for path in paths if has_magic(path)]  # `rm` would take these for patterns
        try:
            if together:
                self.store.call_once("rm", together)
        except OSError:
            alone = paths  # a missing object must not prevent the removal of others
        for path in alone:
            with contextlib.suppress(OSError):
                self.store.remove_file(path)
        self.tidy(names)

    def remove_tree(self) -> None:
        """Remove the directory at the URL, with its content."""
        self.store.remove_tree(self.path(""))

    @contextlib.contextmanager
    def directory(self, *, replaces: bool) -> Iterator[Objects]:
        """Yield a directory whose objects are written all or not at all: an error in the block removes them.

        A local directory appears, or is replaced, when the block ends; if an empty directory exists, objects are
        written into it. Object stores cannot replace many objects at once. There, the old objects stay unchanged during
        the block, and readers see the new set as soon as the object that was written last gets its name.
        """
        if replaces and not self.is_local:
            drafts = _Drafts(self.url_of(make_draft_name("new")), self._stores)
            try:
                yield drafts
            except BaseException:
                drafts.remove_tree()
                raise
            self._replace_all(drafts)
            return
        # If the URL is a link, the directory behind the link is replaced.
        path = self.store.resolve_links(self._place_of("")) if self.is_local else ""
        is_apart = path and (replaces or not os.path.lexists(path))
        draft = Objects(make_draft_name(path), {}) if is_apart else self
        if path:
            remove_stale_drafts(*os.path.split(path))
        if draft is not self:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkdir(draft.path(""), 0o700 if replaces else 0o777)
        try:
            with lock_draft_directory(draft.path("")) if draft is not self else contextlib.nullcontext():
                yield draft
            if draft is not self and replaces:
                replace_directory(path, draft.path(""))
            elif draft is not self:
                os.rename(draft.path(""), path)
        except BaseException:
            draft.remove_tree()
            raise

    def _replace_all(self, drafts: _Drafts) -> None:
        """Copy the ``drafts`` to their names, the last written one at the end; remove old objects with other names.

        Readers open the object first that is copied last. If other drafts replace old objects, the old object of this
        name is removed before: otherwise readers would take old and new objects for one set.
        """
        names, folder = drafts.list_in_order(), f"{self.name_of(drafts.url)}/"
        replaced = {name for name in self.find("") if not name.startswith(folder)}
        try:
            if not replaced.isdisjoint(names[:-1]):
                self.remove(names[-1])
            self.copy_all({folder + name: name for name in names[:-1]})
            if names:
                self.copy(folder + names[-1], names[-1])
            self.remove_all(replaced.difference(names))
            drafts.remove_tree()
        except OSError as e:
            e.add_note(f"readers of {self.url} may see no set, or a mixture of the new and the old set: save it again")
            raise

    def sweep(self, names: Iterable[str]) -> None:
        """Remove the drafts of killed processes beside the objects ``names``. The caller holds the `lock`."""
        if not self.is_local:
            return
        for folder in {os.path.dirname(self.path(name)) for name in names}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if is_draft(entry.name) and not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)

    def sweep_stale(self, names: Iterable[str]) -> None:
        """Remove stale drafts beside the objects ``names``, while other writers may be at work."""
        if self.is_local:
            for folder in {os.path.dirname(self.path(name)) for name in names}:
                remove_stale_drafts(folder, "")

    def tidy(self, names: Iterable[str], *, with_root: bool = True) -> None:
        """Remove the empty directories of the objects ``names``, if they are local.

        ``with_root``: also remove the directory at the URL, and with it its lock.
        """
        if not self.is_local:
            return
        root = self.path("") if with_root else self.path("") + "/"
        for folder in sorted({os.path.dirname(self.path(name)) for name in names}, reverse=True):
            while len(folder) >= len(root):
                try:
                    os.rmdir(folder)
                except OSError:
                    break
                folder = os.path.dirname(folder)


class _Drafts(Objects):
    """Objects, and the order in which they were written."""

    def __init__(self, url: str, stores: Stores) -> None:
        super().__init__(url, stores)
        self._written: list[str] = []

    def put(
        self, name: str, parts: Sequence[Buffer], condition: Condition = None, *, durable: bool = True
    ) -> Facts | None:
        facts = super().put(name, parts, condition, durable=durable)
        self._written.append(name)
        return facts

    @contextlib.contextmanager
    def stream(self, name: str = "", condition: Condition = None, *, durable: bool = False) -> Iterator[BinaryIO]:
        with super().stream(name, condition, durable=durable) as file:
            yield file
        self._written.append(name)

    def list_in_order(self) -> list[str]:
        """Return the names of the objects in the order in which they were written."""
        places = {name: place for place, name in enumerate(self._written)}
        return sorted(self.find(""), key=lambda name: places.get(name, -1))
