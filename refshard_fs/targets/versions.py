"""One session reads one version of each object: what the first answer said of it is held against all later ones.

Only strong ETags are compared as such: servers behind one name may differ in weak ones. Where
there are none to compare, the time of the last change is, and in any case the size.
"""

from __future__ import annotations

import email.utils
import re
import threading
from collections import OrderedDict
from datetime import UTC, datetime
from typing import NamedTuple

from refshard_fs.errors import TargetChanged
from refshard_fs.model import Pin
from refshard_fs.targets.answer import OWN

__all__ = ["Seen", "Version", "Versions", "strong"]

REMEMBERED = 1 << 16  # objects

_NUMBER = re.compile(r"-?\d+(\.\d*)?$")


class Seen(NamedTuple):
    """What was seen of an object in one session, for another one to compare."""

    etag: str | None
    modified: str | None
    size: int | None


class Version:
    """What is known of one object; shared by all loops and threads of a session."""

    __slots__ = ("_pin", "_seen", "etag", "modified", "size", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self._seen = False
        self.etag: str | None = None
        self.modified: str | None = None
        self.size: int | None = None
        self._pin: Pin | None = None

    @property
    def seen(self) -> Seen | None:
        """What is known, if anything was seen of the object."""
        return Seen(self.etag, self.modified, self.size) if self._seen else None

    def is_like(self, seen: Seen) -> bool:
        """Whether this object, if it was seen at all, is the one that was ``seen``; from then on it is held to it."""
        try:
            self.observe(*seen, None)
        except TargetChanged:
            return False
        return True

    def condition(self, pin: Pin | None) -> str | None:
        """Return the ETag to ask for: the one seen before, or the one that the manifest names."""
        if self._seen or pin is None:
            return strong(self.etag)
        etag = strong(pin.etag)
        return None if etag is None else f'"{bare(etag)}"'

    def observe(self, etag: str | None, modified: str | None, size: int | None, pin: Pin | None) -> None:
        """Hold an answer against what is known; TargetChanged, which says what differs, where it is another version."""
        if self._seen and etag == self.etag and modified == self.modified and (size is None or size == self.size):
            if pin is None or pin == self._pin:
                return
        elif self._seen:
            self._compare(etag, modified, size)
        self.etag = self.etag or etag
        self.modified = self.modified or modified
        self.size = size if self.size is None else self.size
        self._seen = True
        if pin is not None:
            self._hold(pin, etag, modified, size)
            self._pin = pin

    def refuse(self, pin: Pin | None) -> TargetChanged:
        """Return the error for a server that says the object is no longer what was asked for."""
        if self._seen:
            return self._changed(f"its ETag is no longer {self.etag}")
        return self._differs(f"its ETag is not {pin.etag}" if pin is not None else "its ETag is another one")

    def _compare(self, etag: str | None, modified: str | None, size: int | None) -> None:
        if size is not None and self.size is not None and size != self.size:
            raise self._changed(f"its size was {self.size} bytes and is {size}")
        if etag is not None and self.etag is not None:
            if bare(etag) == bare(self.etag):
                return
            if strong(etag) and strong(self.etag):
                raise self._changed(f"its ETag was {self.etag} and is {etag}")
        if modified is not None and self.modified is not None and modified != self.modified:
            raise self._changed(f"it was last modified {self.modified}, and then {modified}")

    def _hold(self, pin: Pin, etag: str | None, modified: str | None, size: int | None) -> None:
        if pin.size is not None and size is not None and pin.size != size:
            raise self._differs(f"its size is {size} bytes, not {pin.size}")
        if pin.etag is not None and etag is not None:
            if bare(pin.etag) != bare(etag) and not etag.startswith(OWN):
                raise self._differs(f"its ETag is {etag}, not {pin.etag}")
        if (pin.etag is None or etag is None) and pin.last_modified is not None and modified is not None:
            recorded, found = seconds(pin.last_modified), seconds(modified)
            if recorded is None or found is None:
                return
            if pin.exact:  # some tell fractions of a second, and others cut them off
                if abs(found - recorded) >= (0.0001 if "." in pin.last_modified and "." in modified else 1):
                    raise self._differs(f"it was last modified {modified}, not {pin.last_modified}")
            elif found > recorded + 1:
                raise self._differs(f"it was last modified {modified}, after {pin.last_modified}")

    def _changed(self, what: str) -> TargetChanged:
        remedy = "invalidate_cache() starts over with what is there now"
        return TargetChanged("", self.url, f"it was replaced since it was first read here: {what}; {remedy}")

    def _differs(self, what: str) -> TargetChanged:
        return TargetChanged("", self.url, f"it is not the object that the manifest was made for: {what}")


class Versions:
    """The versions of a session's objects; the least recently opened are forgotten beyond some number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Version] = OrderedDict()

    def of(self, url: str) -> Version:
        """Return the one record of ``url``."""
        with self._lock:
            version = self._known.get(url)
            if version is None:
                version = self._known[url] = Version(url)
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(url)
            return version

    def seen(self, url: str) -> Seen | None:
        """Return what is known of the object at ``url``, if anything was seen of it; nothing is forgotten for that."""
        version = self._known.get(url)
        return None if version is None else version.seen

    def clear(self) -> None:
        """Forget all: what is read next is the version from then on."""
        with self._lock:
            self._known.clear()

    def after_fork(self) -> None:
        """Be usable in a child, whichever thread held the lock."""
        self._lock = threading.Lock()


def strong(etag: str | None) -> str | None:
    """Return ``etag`` if it names exact bytes (RFC 9110, section 8.8.1)."""
    return None if etag is None or etag.startswith("W/") else etag


def bare(etag: str) -> str:
    """Return ``etag`` without its weakness and quotes."""
    return etag.removeprefix("W/").strip('"')


def seconds(text: str) -> float | None:
    """Return a time, as HTTP, ISO 8601 or the epoch write it, in seconds since the epoch; None if it is none."""
    if _NUMBER.match(text):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(text)
        except (ValueError, OverflowError):  # the latter of a year of twenty digits
            return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
