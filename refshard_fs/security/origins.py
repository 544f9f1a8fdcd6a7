"""Which targets of a set of the user's a stranger's set named: such a target is opened by that set's rule. No I/O here.

Saving a stranger's set makes it a file of the user's. Its references are the stranger's choice all the same, and so a
set that this package writes says where they came from: a mapping from URL prefixes to the servers of the sets that
named what lies there. A target is then admitted only if a set of each of these servers might have opened it, with the
fewest of the credentials that they grant. So a record takes rights away, whoever wrote it, and never gives any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from refshard_fs.errors import ManifestError
from refshard_fs.security.admission import Admission, origin_of, spelled
from refshard_fs.security.policy import climbs, links, longest_prefix, protocol_of, server_of

MEMBER = "from"  # its name in a document


class Origins(msgspec.Struct, frozen=True):
    """The servers of the sets that named what lies below each prefix, which has no slash at its end.

    The longest prefix counts. One without servers is the user's own, and so is all that is below no prefix.
    """

    by_prefix: Mapping[str, tuple[str, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_prefix)

    @property
    def servers(self) -> frozenset[str]:
        """The servers of the strangers' sets that this one was made of."""
        return frozenset(origin for origins in self.by_prefix.values() for origin in origins)

    def of(self, url: str) -> tuple[str, ...]:
        """Return the servers whose sets named the absolute ``url``; none if it is the user's own."""
        return self._below(_place(url)) if self.by_prefix else ()

    def _below(self, url: str) -> tuple[str, ...]:
        server = server_of(url)
        stem = server if climbs(url) else url.rstrip("/")
        while len(stem) > len(server):
            if (found := self.by_prefix.get(stem)) is not None:
                return found
            stem = stem.rpartition("/")[0]
        return self.by_prefix.get(server, ())

    def with_urls(self, named: Iterable[tuple[str | None, tuple[str, ...]]]) -> Origins:
        """Return the origins of a set that has further URLs, each given with those who named it."""
        found: dict[str, tuple[str, ...]] = {}
        for url, origins in named:
            if url is not None and self.of(url) != origins:
                found[_key(url, origins)] = origins
        return _without_repeats({**self.by_prefix, **found}) if found else self

    @classmethod
    def made(cls, named: Collection[tuple[str | None, tuple[str, ...]]], servers: Iterable[str]) -> Origins:
        """Return the origins of a set of these URLs, each given with those who named it, made of sets of ``servers``.

        A URL that the user named is the user's, whoever named it too.
        """
        servers = frozenset(servers)
        if not servers and not any(origins for _, origins in named):
            return cls()
        by_server: dict[str, dict[str, tuple[str, ...]]] = {}
        for url, origins in named:
            if url is not None:
                place = _place(url)
                known = by_server.setdefault(server_of(place), {})
                known[place] = known.get(place, origins) and origins
        found: dict[str, tuple[str, ...]] = {}
        for server, known in by_server.items():
            if len(set(known.values())) == 1:
                found[server] = next(iter(known.values()))
            else:
                found |= {_key(place, origins): origins for place, origins in known.items() if origins}
        for origin in sorted(servers - cls(found).servers):
            place = _place(origin).rstrip("/")  # as in `Adoption`
            found[place] = (*found.get(place, ()), origin)
        return _without_repeats(found)

    def spelled(self) -> dict[str, list[str]]:
        """Return the JSON value."""
        return {prefix: list(origins) for prefix, origins in self.by_prefix.items()}

    @classmethod
    def read(cls, value: object, where: str) -> Origins:
        """Return what the JSON ``value`` of ``where`` spells; ManifestError where it is malformed."""
        try:
            return cls(msgspec.convert(value, dict[str, tuple[str, ...]]))
        except (msgspec.ValidationError, UnicodeEncodeError) as e:  # the latter of half a surrogate pair
            raise ManifestError(f"the member {MEMBER!r} of {where} is malformed: {e}") from e


NOTHING: Final = Origins()  # the origins of a set that is the user's alone


class Adoption:
    """Finds the origins of a set that becomes the user's, from its URLs; ``rule`` is that for its targets."""

    def __init__(self, rule: Admission) -> None:
        self._rule = rule
        self._found: dict[str, tuple[str, ...]] = {}

    def add(self, url: str | None) -> None:
        """Take in a URL of the set; TargetNotAllowed where the set may not point there."""
        if url is None or self._rule.admits_all:
            return
        self._rule.admit(url)
        origin = named_by(self._rule, url)
        if origin:
            server = server_of(_place(url))
            if "::" in url or server not in self._found:  # a chain leads into the source, whose rule fits the server
                self._found[server] = origin
        elif (chosen := longest_prefix(self._rule.named, _place(url))) is not None:
            self._found.setdefault(chosen[0], ())

    def add_own(self, url: str) -> None:
        """Take in a URL that the user chose."""
        self._found[_place(url).rstrip("/")] = ()

    def origins(self, known: Origins) -> Origins:
        """Return the origins of all URLs; ``known`` are those that the set itself records."""
        if self._rule.trusts_source:
            return known.with_urls((url, ()) for url in self._found)
        source = (_origin(self._rule.source or "", None),)
        found = dict(self._found)
        for prefix, origins in known.by_prefix.items():
            found[prefix] = (*(origin for origin in origins if origin not in source), *source)
        if not any(found.values()):  # nothing from there need be named: metadata may be
            found[_place(source[0]).rstrip("/")] = source
        return _without_repeats(found)


def named_by(rule: Admission, url: str) -> tuple[str, ...]:
    """Return the origin of ``url`` if the set with that ``rule`` names it; none where it is the user's own."""
    if rule.trusts_source or protocol_of(url) == "data":
        return ()
    named = rule.named
    is_own = named and longest_prefix(named, _place(url)) is not None
    return () if is_own else (_origin(rule.source or "", url if "::" in url else server_of(url)),)


def _place(url: str) -> str:
    """Return what is asked for ``url``: itself in its one spelling; of a chain, its last link."""
    return spelled(links(url)[-1])


def _key(url: str, origins: tuple[str, ...]) -> str:
    """Return the prefix that ``url`` is recorded by: its server, where sets from there may read all of it."""
    place = _place(url)
    is_home = origins and all(len(links(o)) == 1 and origin_of(o) == origin_of(place) for o in origins)
    return server_of(place) if is_home else place.rstrip("/")


@lru_cache(1024)
def _origin(source: str, url: str | None) -> str:
    """Return what is recorded of ``source`` for ``url``: its server or bucket, with a login only if ``url`` has that.

    What lies within an archive, or behind a cache, is allowed to the very source alone.
    """
    if url is not None and len(links(url)) > 1:
        return source
    server = server_of(links(source)[-1])
    protocol, separator, authority = server.partition("://")
    if protocol.lower() in _WITH_LOGINS and (url is None or server_of(url) != server):
        authority = authority.rpartition("@")[2]
    return protocol + separator + authority


_WITH_LOGINS = frozenset(["http", "https", "ftp", "ftps", "sftp", "ssh", "smb", "webdav", "dav"])


def _without_repeats(found: Mapping[str, tuple[str, ...]]) -> Origins:
    """Return the same without prefixes of which a shorter one says as much."""
    kept: dict[str, tuple[str, ...]] = {}
    for prefix in sorted(found, key=len):
        if Origins(kept)._below(prefix) != found[prefix]:
            kept[prefix] = found[prefix]
    return Origins(kept)


def read_member(document: Any, where: str) -> Origins:
    """Return what the member of a decoded JSON object says; nothing where it has none."""
    return Origins.read(document[MEMBER], where) if isinstance(document, Mapping) and MEMBER in document else Origins()
