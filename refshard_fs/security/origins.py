"""Record which targets in a user's set come from a stranger's set, to open them by the stranger's rule. No I/O here.

A saved copy of a stranger's set is a file of the user, but the stranger chose its references. So a set that this
package writes records their origins: for URL prefixes, the servers of the sets that named URLs there. A target is
opened only if a set from each of these servers might open it, and with the fewest credentials that any of these sets
would get. A record can only take rights away, regardless of its author.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from refshard_fs.errors import ManifestError, sanitize
from refshard_fs.security.admission import Admission, origin_of, try_canonicalize
from refshard_fs.security.policy import DECOMPRESS, find_longest_prefix, leads_out, protocol_of, server_of, split_chain

_MAX_NAMES: Final = 5  # the most servers that a remark names; it counts the others
MEMBER = "from"  # the name of the record in a document


class Origins(msgspec.Struct, frozen=True):
    """For each URL prefix, the servers of the sets that named URLs below the prefix, which has no slash at the end.

    The longest prefix applies. URLs below a prefix without servers, or below no prefix, are the user's own.
    """

    by_prefix: Mapping[str, tuple[str, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_prefix)

    @property
    def servers(self) -> frozenset[str]:
        """The servers of the strangers' sets of which this set was made."""
        return frozenset(origin for origins in self.by_prefix.values() for origin in origins)

    def of(self, url: str) -> tuple[str, ...]:
        """Return the servers whose sets named the absolute ``url``; empty if the URL is the user's own."""
        return self._find_servers(_canonicalize_last_link(url)) if self.by_prefix else ()

    def _find_servers(self, url: str) -> tuple[str, ...]:
        server = server_of(url)
        stem = server if leads_out(url) else url.rstrip("/")
        while len(stem) > len(server):
            if (found := self.by_prefix.get(stem)) is not None:
                return found
            stem = stem.rpartition("/")[0]
        return self.by_prefix.get(server, ())

    def with_urls(self, named: Iterable[tuple[str | None, tuple[str, ...]]]) -> Origins:
        """Return the origins of this set with more URLs: ``named`` has (URL, servers whose sets named it)."""
        found: dict[str, tuple[str, ...]] = {}
        for url, origins in named:
            if url is not None and self.of(url) != origins:
                found[_choose_prefix(url, origins)] = origins
        return _drop_repeats({**self.by_prefix, **found}) if found else self

    @classmethod
    def combine(cls, named: Collection[tuple[str | None, tuple[str, ...]]], servers: Iterable[str]) -> Origins:
        """Return the origins of a set that is made of sets from ``servers``.

        ``named`` has (URL, servers whose sets named it) for the URLs of the set. A URL that also has an entry without
        servers is the user's own.
        """
        servers = frozenset(servers)
        if not servers and not any(origins for _, origins in named):
            return cls()
        by_server: dict[str, dict[str, tuple[str, ...]]] = {}
        for url, origins in named:
            if url is not None:
                place = _canonicalize_last_link(url)
                known = by_server.setdefault(server_of(place), {})
                known[place] = known.get(place, origins) and origins
        found: dict[str, tuple[str, ...]] = {}
        for server, known in by_server.items():
            if len(set(known.values())) == 1:
                found[server] = next(iter(known.values()))
            else:
                found |= {_choose_prefix(place, origins): origins for place, origins in known.items() if origins}
        for origin in sorted(servers - cls(found).servers):
            place = _canonicalize_last_link(origin).rstrip("/")  # the spelling of `Adoption.add_own`
            found[place] = (*found.get(place, ()), origin)
        return _drop_repeats(found)

    @property
    def remark(self) -> str:
        """A text for the user: it names the other servers that strangers' sets lead to, and the limits that apply.

        It is empty if there are no such servers.
        """
        others = {
            sanitize(server_of(prefix))
            for prefix, origins in self.by_prefix.items()
            if origins and origin_of(prefix) not in {origin_of(split_chain(origin)[-1]) for origin in origins}
        }
        if not others:
            return ""
        return (
            f"sets that are not yours, from {_list_names(map(sanitize, self.servers))}, name targets on other servers: "
            f"{_list_names(others)}. The result keeps the limits of these sets: its targets there are opened without "
            "your credentials, and not in private networks. If you trust such a server, name its URL in options= when "
            "you open the result"
        )

    def to_json(self) -> dict[str, list[str]]:
        """Return the record as a JSON value."""
        return {prefix: list(origins) for prefix, origins in self.by_prefix.items()}

    @classmethod
    def read(cls, value: object, where: str) -> Origins:
        """Parse the JSON ``value`` of the record in ``where``; ManifestError if it is malformed."""
        try:
            return cls(msgspec.convert(value, dict[str, tuple[str, ...]]))
        except (msgspec.ValidationError, UnicodeEncodeError) as e:  # UnicodeEncodeError: half a surrogate pair
            raise ManifestError(
                f"the member {MEMBER!r} of {where} is malformed: expected an object of arrays of URLs ({e})"
            ) from e


def _list_names(names: Iterable[str]) -> str:
    first, rest = (found := sorted(names))[:_MAX_NAMES], found[_MAX_NAMES:]
    return ", ".join(first) + (f" and {len(rest)} more" if rest else "")


NOTHING: Final = Origins()  # the origins of a set that is entirely the user's own


class Adoption:
    """Find the origins to record in a set that the user saves, from its URLs and the ``rule`` for its targets."""

    def __init__(self, rule: Admission) -> None:
        self._rule = rule
        self._found: dict[str, tuple[str, ...]] = {}

    def add(self, url: str | None) -> None:
        """Add a URL of the set; raise TargetNotAllowed if the set must not point there."""
        if url is None or self._rule.admits_all:
            return
        url = url.removeprefix(DECOMPRESS)
        self._rule.admit(url)
        origin = find_origin(self._rule, url)
        if origin:
            server = server_of(_canonicalize_last_link(url))
            if "::" in url or server not in self._found:  # the origin of a chain applies to all URLs of the server
                self._found[server] = origin
        elif (chosen := find_longest_prefix(self._rule.named_prefixes, _canonicalize_last_link(url))) is not None:
            self._found.setdefault(chosen[0], ())

    def add_own(self, url: str) -> None:
        """Add a URL that the user chose."""
        self._found[_canonicalize_last_link(url).rstrip("/")] = ()

    def combine_origins(self, known: Origins) -> Origins:
        """Return the origins of all added URLs, and ``known``, the origins that the set itself records."""
        if self._rule.trusts_source:
            return known.with_urls((url, ()) for url in self._found)
        source = (_make_origin(self._rule.source or "", None),)
        found = dict(self._found)
        for prefix, origins in known.by_prefix.items():
            found[prefix] = (*(origin for origin in origins if origin not in source), *source)
        if not any(found.values()):  # no URL comes from the stranger, but metadata may
            found[_canonicalize_last_link(source[0]).rstrip("/")] = source
        return _drop_repeats(found)


def find_origin(rule: Admission, url: str) -> tuple[str, ...]:
    """Return the origin of a ``url`` in a set with this ``rule``; empty if the URL is the user's own."""
    url = url.removeprefix(DECOMPRESS)
    if rule.trusts_source or protocol_of(url) == "data":
        return ()
    named = rule.named_prefixes
    is_own = named and find_longest_prefix(named, _canonicalize_last_link(url)) is not None
    return () if is_own else (_make_origin(rule.source or "", url if "::" in url else server_of(url)),)


def _canonicalize_last_link(url: str) -> str:
    """Return the canonical spelling of ``url``; for a chain, of its last link."""
    return try_canonicalize(split_chain(url)[-1])


def _choose_prefix(url: str, origins: tuple[str, ...]) -> str:
    """Return the prefix by which to record ``url``: its server if ``origins`` are this server; else the URL itself."""
    place = _canonicalize_last_link(url)
    is_home = origins and all(len(split_chain(o)) == 1 and origin_of(o) == origin_of(place) for o in origins)
    return server_of(place) if is_home else place.rstrip("/")


@lru_cache(1024)
def _make_origin(source: str, url: str | None) -> str:
    """Return the origin to record for ``url`` in the set ``source``: the server or bucket of the set.

    The origin has the login in the URL of the set only if ``url`` has it, too. For a chain (a member of an archive, or
    a URL behind a cache) the origin is the whole ``source``: only this set may open the chain.
    """
    if url is not None and len(split_chain(url)) > 1:
        return source
    server = server_of(split_chain(source)[-1])
    protocol, separator, authority = server.partition("://")
    if protocol.lower() in _WITH_LOGINS and (url is None or server_of(url) != server):
        authority = authority.rpartition("@")[2]
    return protocol + separator + authority


_WITH_LOGINS = frozenset(["http", "https", "ftp", "ftps", "sftp", "ssh", "smb", "webdav", "dav"])


def _drop_repeats(found: Mapping[str, tuple[str, ...]]) -> Origins:
    """Return the origins, without the prefixes that a shorter prefix covers."""
    return _share(tuple(found.items()))


@lru_cache(256)
def _share(found: tuple[tuple[str, tuple[str, ...]], ...]) -> Origins:
    """Return the result of `_drop_repeats`: one object for all equal arguments, which many files of a server have."""
    kept: dict[str, tuple[str, ...]] = {}
    for prefix, origins in sorted(found, key=lambda item: len(item[0])):
        if Origins(kept)._find_servers(prefix) != origins:
            kept[prefix] = origins
    return Origins(kept)


def read_member(document: Any, where: str) -> Origins:
    """Return the origins that a decoded JSON document records; empty ones if it has no record."""
    return Origins.read(document[MEMBER], where) if isinstance(document, Mapping) and MEMBER in document else Origins()
