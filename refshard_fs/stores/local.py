"""Store objects as local files: write a draft, sync it if it must be durable, and rename it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from typing import BinaryIO

from refshard_fs.core.model import Facts
from refshard_fs.errors import sanitize
from refshard_fs.stores.drafts import replace_file
from refshard_fs.stores.links import resolve_path_to_write
from refshard_fs.stores.lock import hold_lock
from refshard_fs.stores.store import Buffer, Condition, ObjectPlace, Store
from refshard_fs.targets.local import facts_of
from refshard_fs.targets.logs import log_request


class LocalStore(Store):
    """The local filesystem."""

    is_local = True

    def resolve_links(self, place: ObjectPlace) -> str:
        return resolve_path_to_write(place.path, place.root)

    @contextlib.contextmanager
    def lock(self, place: ObjectPlace, *, of_parent: bool = False) -> Iterator[None]:
        path = self.resolve_links(place)
        folder = (os.path.dirname(path) or ".") if of_parent else path
        _make_directory(folder)
        with hold_lock(folder):
            yield

    def get_facts(self, path: str) -> Facts | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if stat.S_ISDIR(found.st_mode) else facts_of(found)

    def put(self, place: ObjectPlace, parts: Sequence[Buffer], condition: Condition, *, durable: bool) -> Facts | None:
        with self.stream(place, condition, durable=durable) as file:
            file.writelines(parts)
        return facts_of(os.stat(place.path))

    @contextlib.contextmanager
    def stream(self, place: ObjectPlace, condition: Condition, *, durable: bool) -> Iterator[BinaryIO]:
        path = self.resolve_links(place)
        _make_directory(os.path.dirname(path) or ".")
        check = partial(self.check, place, condition)
        with log_request("WRITE", path), replace_file(path, check=check, durable=durable) as file:
            yield file

    def copy(self, path: str, new: ObjectPlace) -> None:
        self.put(new, (self.fs.cat_file(path),), None, durable=True)


def _make_directory(path: str) -> None:
    """Create a directory, if it is missing; NotADirectoryError if a file is in the way."""
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        while not os.path.lexists(path):
            path = os.path.dirname(path)
        raise NotADirectoryError(f"{sanitize(path)} is a file: expected a directory to write in") from None
