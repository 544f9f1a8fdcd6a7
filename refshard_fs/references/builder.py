"""References taken in as they come, whole blocks as columns where possible, and made a `ReferenceSet` in the end.

Order counts as in a JSON object: the last value of a key wins. Metadata may come after the chunks that it
is about. What is held on the way is columns, or the text of blocks whose arrays are not known yet. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, Row
from refshard_fs.core.keys import normalise
from refshard_fs.errors import ManifestError
from refshard_fs.references.builder_state import Aside, Loose, Taken, has_odd
from refshard_fs.references.finalise import ENDS, Placed, kept_by_key, placed, settle
from refshard_fs.references.json_scan import Irregular, Records, block_texts, scan
from refshard_fs.references.key_table import Run
from refshard_fs.references.metadata_scan import Learning, documents_among
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.url_column import Urls
from refshard_fs.references.values import METADATA, Value

__all__ = ["BATCH", "Gathering"]

BATCH: Final = 16384  # members that are taken at a time from something longer
FEW: Final = 64  # members that are looked at one by one
MANY: Final = 512  # documents of arrays, from so many on
EACH: Final = 16  # with fewer members for each, chunks take no less room in columns than by their keys


class Gathering:
    """The members of one JSON object of references, ``where`` naming it in errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._taken = Taken(where)
        self._learning = Learning(where, self._taken)
        self._sequence = 0
        self._members = self._documents = 0
        self._by_key: bool | None = None  # whether all is kept by its key; None: not yet

    @property
    def is_empty(self) -> bool:
        return not self._sequence

    def add_block(self, block: bytes | memoryview, others: Iterable[bytes] = ()) -> bool:
        """Take compact members (see `json_fast`); False, and nothing taken, where they are not of that form.

        Nor is anything taken where there is one of ``others``, keys with a meaning of their own.
        """
        try:
            records = scan(block, self._taken.urls)
            if records is None or any(map(records.has, others)):
                return False
            self._add_records(records)
        except (UnicodeDecodeError, Irregular):
            return False  # a reader of JSON will say what is wrong
        return True

    def add_members(self, members: Mapping[Any, Any]) -> None:
        """Take members as Python values."""
        if len(members) <= FEW:
            self._add_singly(members)
            return
        if _is_regular(members):
            self._add_regular(members)
            return
        regular: dict[str, Any] = {}
        of_default: dict[str, Any] = {}
        others: dict[Any, Any] = {}
        for key, value in members.items():
            kind = type(value)
            if type(key) is not str:
                others[key] = value
            elif kind is str or ((kind is list or kind is tuple) and len(value) in (1, 3) and type(value[0]) is str):
                regular[key] = value
            elif (kind is list or kind is tuple) and len(value) == 3 and value[0] is None:
                of_default[key] = ("", value[1], value[2])
            else:
                others[key] = value
        self._add_singly(others)
        self._add_regular(regular)
        records = _compact(of_default, Urls()) if len(of_default) > FEW else None
        if records is None:
            self._add_singly({key: members[key] for key in of_default})
        else:
            records.targets[:] = self._target(None)
            self._add_records(records)

    def _add_regular(self, members: Mapping[str, Any]) -> None:
        """Take members that are texts, or lists that begin with one."""
        records = _compact(members, self._taken.urls) if len(members) > FEW else None
        if records is None:
            self._add_singly(members)
        else:
            self._add_records(records)

    def add_batches(self, members: Mapping[Any, Any]) -> None:
        """Take the members of a mapping that may be long."""
        if len(members) <= 2 * BATCH:
            self.add_members(members)
            return
        items = iter(members.items())
        while batch := dict(islice(items, BATCH)):
            self.add_members(batch)

    def expand(self, expand: Callable[[str], str]) -> None:
        """Expand the URLs of all members so far that have ``{{`` in them."""
        self._taken.expand(expand)

    def finish(self) -> ReferenceSet:
        """Return the reference set; the builder is of no use after that."""
        return kept_by_key(self._taken) if self._by_key else settle(self._taken)

    # ------------------------------------------------------------------ columns

    def _add_records(self, records: Records) -> None:
        """Take records, and the texts among them, which may be what tells of arrays; `Irregular` as `block_texts`."""
        texts, last = block_texts(records), records.last_bytes()
        documents = None if texts is None else documents_among(records, texts)
        by_key = self._are_few_each(len(records), 0 if documents is None else len(documents))
        if texts is not None and documents is not None and not by_key:
            self._learning.learn_all(records, texts, documents)
        sequence = self._next()
        taken = self._taken
        may_be = ENDS[last]
        if texts is not None and len(texts.rows) == len(records):  # which hide nothing, as long as all are data
            parts, common, unplaced = Placed([], [], np.flatnonzero(may_be))
        else:
            parts, common, unplaced = placed(records, may_be, sequence, taken)
        for path, part in parts:
            taken.parts.setdefault(path, []).append((sequence, part))
            if texts is not None and (part.targets == ABSENT).any():
                taken.hiding.add(path)
        taken.common += common
        aside = ~may_be
        aside[unplaced] = True
        offsets, lengths = records.offsets, records.lengths
        if texts is not None:
            # A text in the place of a chunk hides what came before; what it is lies aside.
            aside[texts.rows] = True
            offsets[texts.rows] = texts.offsets + np.uint64(len(taken.data))
            lengths[texts.rows] = texts.lengths
            taken.data += texts.data
        chosen = np.flatnonzero(aside)
        if not len(chosen):
            return
        keys, settled = records.spelled_keys(chosen), not len(unplaced)
        sizes = (records.key_stops - records.key_starts)[chosen]
        if has_odd(keys):
            names = [self._checked_key(key).encode() for key in records.keys(chosen)]
            sizes, settled = np.fromiter(map(len, names), np.int64, len(names)), False
            keys = b"".join([name + b'"' for name in names])
        columns = records.targets[chosen], offsets[chosen], lengths[chosen]
        taken.loose.append(Loose(sequence, Run(keys, sizes, *columns, taken.data), settled))

    def _are_few_each(self, members: int, documents: int) -> bool:
        """Count some more; return whether there are so many arrays for so few members that all is kept by its key."""
        self._members += members
        self._documents += documents
        are_few = self._members <= EACH * self._documents
        if self._by_key and not are_few:  # after all
            self._by_key = False
            self._learning.learn_late()
        elif self._by_key is None and are_few and self._documents > MANY:
            self._by_key = self._taken.forget_arrays()
        return self._by_key is True

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    # ------------------------------------------------------------------ single members

    def _add_singly(self, members: Mapping[Any, Any]) -> None:
        if not members:
            return
        by_key = self._are_few_each(
            len(members), sum(1 for key in members if type(key) is str and key.endswith(METADATA))
        )
        taken: dict[str, Value] = {}
        for key, value in members.items():
            if not isinstance(key, str):
                raise ManifestError(f"{self._where}: the key {key!r} is no string")
            name = self._checked_key(key)
            try:
                taken[name] = found = self._value(value)
            except ManifestError as e:
                raise ManifestError(f"{key!r} of {self._where}: {e}") from e
            if not by_key and name.endswith(METADATA) and type(found) is not Row:
                self._learning.learn(name, found)
        self._taken.side.append(Aside(self._next(), taken, False))

    def _checked_key(self, key: str) -> str:
        try:
            return _key(key)
        except ManifestError as e:
            raise ManifestError(f"{key!r} of {self._where}: {e}") from e

    def _value(self, value: Any) -> Value:
        match value:
            case str() | bytes():
                return value
            case [str() | None as url]:
                return Row(self._target_of(url), 0, None)
            case [str() | None as url, offset, length]:
                return Row(self._target_of(url), _count(offset, "offset"), _count(length, "length"))
            case [url] | [url, _, _]:
                raise ManifestError(f"its URL is {url!r}, neither text nor null")
            case list() | tuple():
                elements = f"one element or three, [url] or [url, offset, length], not {len(value)}"
                raise ManifestError(f"a reference has {elements}")
            case Mapping():
                return dict(value)
            case _:
                raise ManifestError(f"{value!r} is neither data nor a reference")

    def _target(self, url: bytes | None) -> int:
        return self._taken.urls.number(url)

    def _target_of(self, url: str | None) -> int:
        try:
            return self._target(None if url is None else url.encode())
        except UnicodeEncodeError:
            return self._target(b"" if url is None else url.encode("utf-8", "surrogatepass"))


def _is_regular(members: Mapping[Any, Any]) -> bool:
    """Whether ``members`` are texts, and lists that begin with one; bytes, for one, would become a text as JSON."""
    values = members.values()
    if not set(map(type, members)) <= {str} or not set(map(type, values)) <= {str, list, tuple}:
        return False
    try:
        return set(map(type, map(itemgetter(0), values))) <= {str}  # so is the first character of a text
    except IndexError:  # an empty one
        lists = [value for value in values if type(value) is not str]
        return all(lists) and set(map(type, map(itemgetter(0), lists))) <= {str}


def _compact(members: Mapping[str, Any], urls: Urls) -> Records | None:
    """Return members as records, by way of their compact JSON; None where they are not that regular."""
    try:
        block = msgspec.json.encode(members)[1:-1]
    except (TypeError, ValueError, OverflowError):  # the reading one by one says what is wrong
        return None
    return scan(block, urls)


def _key(key: str) -> str:
    if "\\" in key or "//" in key or key[:1] == "/" or key[-1:] == "/":
        key = normalise(key)
    if not key or "\0" in key or (".." in key and ".." in key.split("/")) or "/./" in f"/{key}/":
        raise ManifestError("it is no key: it is empty, or has a NUL, or a segment '.' or '..'")
    return key


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < WHOLE:
        raise ManifestError(f"its {name} is {value!r}, no whole number ≥ 0")
    return value
