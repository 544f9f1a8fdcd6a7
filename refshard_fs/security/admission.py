"""Decide whether a manifest may make this machine fetch a URL, and with whose credentials. No I/O here.

By default a manifest from elsewhere may point to its own server or bucket or archive, to other public web servers, and
to object stores; but not to this machine's files and memory, through other chains of filesystems, or into other private
networks. The user's options permit more: if the user names a protocol, its targets get the user's credentials for it,
but only at public servers; targets below a prefix that the user names get credentials at any server. URLs are compared
and opened in their canonical spelling; a URL of another server that has none is refused. Targets check the addresses of
hosts again when they resolve host names: `Network` classifies addresses.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import urlsplit

import msgspec

from refshard_fs.errors import TargetNotAllowed, sanitize
from refshard_fs.security.policy import (
    ARCHIVES,
    DECOMPRESS,
    LOCAL,
    find_longest_prefix,
    leads_out,
    protocol_of,
    server_of,
    split_chain,
)

WEB = frozenset(["http", "https"])
# Protocols of object stores, and the options that open them without credentials.
ANONYMOUS: dict[str, dict[str, object]] = {
    "s3": {"anon": True},
    "s3a": {"anon": True},
    "gs": {"token": "anon"},
    "gcs": {"token": "anon"},
    "az": {"anon": True},
    "abfs": {"anon": True},
    "abfss": {"anon": True},
    "http": {},
    "https": {},
}
OBJECT_STORES = ANONYMOUS.keys() - WEB
# Protocols whose URLs name a server; URLs of object stores name a bucket, and others a repository.
_NAME_SERVERS = WEB | {"ftp", "ftps", "sftp", "ssh", "smb", "hdfs", "webhdfs", "arrow_hdfs", "webdav", "dav", "root"}
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")
_DOTS = re.compile(r"(?:\.|%2e){1,2}", re.IGNORECASE)
_PARENT = re.compile(r"(?:\.|%2e){2}", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
# No public server has these names (RFC 6762, appendix G; RFC 8375): a proxy may resolve them in a private network.
_INSIDE = (".local", ".internal", ".intranet", ".private", ".corp", ".home", ".lan", ".localdomain", ".home.arpa")
# 192.0.0.0/24 is in IANA's registry of special addresses, but Python before 3.11.9 lacks most of it. 168.63.129.16 is
# in no registry: Azure's machines get their settings from it.
_NOT_PUBLIC = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("168.63.129.16/32"))
_PUBLIC = (ipaddress.IPv4Address("192.0.0.9"), ipaddress.IPv4Address("192.0.0.10"))  # exceptions in 192.0.0.0/24
_DOCUMENTS = ipaddress.IPv6Network("3fff::/20")  # RFC 9637: for examples in documents; Python 3.13 lacks it
_UNICAST = ipaddress.IPv6Network("2000::/3")  # RFC 4291: global addresses
_TRANSLATED = ipaddress.IPv6Address("64:ff9b::").packed[:12]  # RFC 6052: an IPv4 address follows these bytes
_ISATAP = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")  # RFC 5214: an IPv4 address follows these bytes


class Access(IntEnum):
    """The credentials that open a target, and the places where its server may be. Lower values grant less."""

    NONE = 0  # no credentials, at a public server
    LENT = 1  # the credentials for a protocol that the user named, at a public server
    OWN = 2  # the user's credentials, from the configuration or the environment, at any server


def is_trusted(source: str) -> bool:
    """Return whether a manifest at ``source`` is the user's own: on this machine, a data URL, or a chain to these."""
    last = split_chain(source)[-1]
    return protocol_of(last) in (None, "memory", "data", *LOCAL)


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return protocol, host or bucket, and port of a URL; for a chain, of its last link."""
    last = split_chain(url)[-1]
    protocol = protocol_of(last) or "file"
    rest = last.partition("://")[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    if protocol not in WEB:
        return protocol, authority, None
    try:
        parts = urlsplit(f"//{authority}")
        return protocol, (parts.hostname or "").rstrip("."), parts.port or _PORTS[protocol]
    except ValueError:  # the URL cannot be opened
        return protocol, authority, None


def canonicalize(url: str) -> str:
    """Return ``url``, not a chain, in its canonical spelling; ValueError, with the reason, if it has no safe one."""
    if _UNSAFE.search(url):
        raise ValueError("it has a control character or a backslash")
    protocol = protocol_of(url)
    if protocol is None or "://" not in url:
        return url
    rest = url.partition("://")[2]
    authority, slash, path = rest.partition("/")
    if protocol in WEB and (mark := re.search(r"[?#]", authority)):
        authority, slash, path = rest[: mark.start()], "", rest[mark.start() :]
    plain = re.split(r"[?#]", path, maxsplit=1)[0] if protocol in WEB else path
    dots = _PARENT if protocol in OBJECT_STORES else _DOTS  # in an object store, '.' is an ordinary name
    if any(dots.fullmatch(segment) for segment in plain.split("/")):
        raise ValueError("it has a segment '.' or '..'")
    if protocol not in WEB:
        if "@" in authority and protocol in ANONYMOUS and not protocol.startswith("ab"):
            raise ValueError("it contains credentials")
        return f"{protocol}://{authority}{slash}{path}"
    server = _spell_server(protocol, authority)
    return f"{protocol}://{server}{slash}{path.replace(' ', '%20')}"  # HTTP clients send blanks in this form


@lru_cache(1024)
def _spell_server(protocol: str, authority: str) -> str:
    """Return the canonical spelling of a web server; ValueError if it has none."""
    if "@" in authority:
        raise ValueError("it contains credentials")
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname or "", parts.port
        if ":" not in host:
            host = _encode_host(host.rstrip("."))
    except (ValueError, UnicodeError) as e:
        raise ValueError(f"its host is invalid ({e})") from e
    if not host or "%" in host or " " in host:
        raise ValueError(f"its host is {host!r}: expected a name or an address, without blanks and percent signs")
    spelled = f"[{host}]" if ":" in host else host
    return spelled if port is None or port == _PORTS[protocol] else f"{spelled}:{port}"


def _encode_host(host: str) -> str:
    """Encode the name of a host as IDNA 2003; ValueError if this is not possible."""
    if not host.isascii():
        return host.encode("idna").decode("ascii").lower().rstrip(".")  # full stops of other scripts became "."
    # Python's codec would do the same with an ASCII name, but importing it takes milliseconds.
    if host and not all(0 < len(label) < 64 for label in host.split(".")):
        raise ValueError("a label is empty or too long")
    return host.lower()


class Network(IntEnum):
    """The network of an address; larger values need more trust."""

    PUBLIC = 0
    PRIVATE = 1
    MACHINE = 2  # this machine, a link-local or multicast address, or the host of Azure


def find_network(host: str) -> Network:
    """Return the network of ``host``: an address in any spelling, or a name, which is public if it has a dot.

    Names that no public server has, such as ``printer.local``, are not public.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return Network.MACHINE
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:  # the system's resolver accepts these as addresses: 127.1, 0x7f000001, 2130706433
            address = ipaddress.ip_address(socket.inet_aton(host))
        except OSError:
            return Network.PRIVATE if "." not in host or host.endswith(_INSIDE) else Network.PUBLIC
    if isinstance(address, ipaddress.IPv4Address):
        return _parse_network(address, is_public=_is_public(address))
    inner = _find_embedded_addresses(address)
    is_public = address.is_global and address not in _DOCUMENTS if address in _UNICAST else bool(inner)
    return max(
        [
            _parse_network(address, is_public=is_public),
            *(_parse_network(embedded, is_public=_is_public(embedded)) for embedded in inner),
        ]
    )


def is_private(host: str) -> bool:
    """Return whether ``host`` is this machine, or lies in a private or link-local network: see `find_network`."""
    return find_network(host) is not Network.PUBLIC


def _parse_network(address: ipaddress.IPv4Address | ipaddress.IPv6Address, *, is_public: bool) -> Network:
    if is_public:
        return Network.PUBLIC
    is_here = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    is_here = is_here or address in _NOT_PUBLIC[1]
    return Network.MACHINE if is_here else Network.PRIVATE


def _is_public(address: ipaddress.IPv4Address) -> bool:
    if any(address in network for network in _NOT_PUBLIC):
        return address in _PUBLIC
    return address.is_global and not address.is_multicast


def _find_embedded_addresses(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that ``address`` embeds, in any of the known ways."""
    addresses = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address.packed[:12] == _TRANSLATED or (address in _UNICAST and address.packed[8:12] in _ISATAP):
        addresses.append(ipaddress.IPv4Address(address.packed[12:]))
    return [embedded for embedded in addresses if embedded is not None]


def try_canonicalize(url: str) -> str:
    """Return ``url`` in its canonical spelling, for comparisons with prefixes; unchanged if it has no such spelling."""
    try:
        return "::".join(map(canonicalize, split_chain(url)))
    except ValueError:
        return url


def _find_host(url: str) -> str | None:
    """Return the host of the server in a URL that is not a chain; None if URLs of its protocol do not name a server."""
    protocol, host, _ = origin_of(url)
    if protocol in WEB or protocol not in _NAME_SERVERS:
        return host if protocol in WEB else None
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host


class Admission(msgspec.Struct, frozen=True, dict=True):
    """The rule for the targets of one source.

    ``source`` is the URL of a manifest from elsewhere (None: the manifest is the user's own, or may point anywhere).
    If ``allow``, the user's list of URL prefixes, is not None, other URLs are refused, except for the source itself and
    URLs that other options name by ``protocols`` or ``prefixes``.
    """

    source: str | None = None
    allow: tuple[str, ...] | None = None
    protocols: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, source: str | None, allow: Iterable[str] | str | None, protocols: Iterable[str], prefixes: Iterable[str]
    ) -> Admission:
        """Return the rule for a source at URL ``source`` (None: in memory); ``allow="any"`` admits all."""
        if allow == "any":
            return cls()
        if allow is not None and (isinstance(allow, str) or not isinstance(allow, Iterable)):
            raise TypeError(f"invalid allow={allow!r}: expected 'any' or a list of URL prefixes")
        listed = None if allow is None else _parse_prefixes(tuple(allow))
        if listed is None and (source is None or is_trusted(source)):
            return cls()
        return cls(source, listed, frozenset(p.lower() for p in protocols), tuple(map(_parse_prefix, prefixes)))

    @property
    def admits_all(self) -> bool:
        """Whether every URL is admitted."""
        return self.source is None and self.allow is None

    @property
    def trusts_source(self) -> bool:
        """Whether the manifest is the user's own, or ``allow=`` names it."""
        if self.source is None or is_trusted(self.source):
            return True
        allowed = dict.fromkeys(self.allow or (), True)
        try:
            return all(
                find_longest_prefix(allowed, canonicalize(link)) is not None for link in split_chain(self.source)
            )
        except ValueError:
            return False

    @cached_property  # each source of a cube is a prefix, and there may be 100,000
    def named_prefixes(self) -> dict[str, bool]:
        """The URL prefixes that the user named, local ones in all spellings; all values are True."""
        named = [*(self.allow or ()), *self.prefixes]
        paths = {_find_local_path(prefix) for prefix in named} - {None}
        return dict.fromkeys([*named, *(f"{start}{path}" for path in paths for start in _LOCAL_STARTS)], True)

    def admit(self, url: str, redirected_by: str | None = None) -> tuple[str, Access]:
        """Return the URL to open for ``url``, and whose credentials to use; TargetNotAllowed if it is refused.

        If a server redirects to ``url``, ``redirected_by`` is the requested URL.
        """
        if self.admits_all:
            return url, Access.OWN
        if url.startswith(DECOMPRESS) and not url.startswith(DECOMPRESS * 2):  # decompression opens no other file
            admitted, access = self.admit(url.removeprefix(DECOMPRESS), redirected_by)
            return DECOMPRESS + admitted, access
        if self.source is not None and self._is_source(url):
            return url, Access.OWN
        if cache := self._add_cache_before(url):
            inner = msgspec.structs.replace(self, source=(self.source or "")[len(cache) :])
            admitted, access = inner.admit(url[len(cache) :])
            if access is Access.OWN:
                return cache + admitted, access
        try:
            if self.allow is None and (beside := self._add_own_login(url)) is not None:
                return beside, Access.OWN
            url = "::".join(map(canonicalize, split_chain(url)))
        except ValueError as e:
            raise TargetNotAllowed(url, str(e), "Correct the manifest, or pass allow='any' if you trust it") from e
        if self._is_named(url, by_protocol=False):
            return url, Access.OWN
        if self._is_named(url, by_protocol=True):
            return url, self._admit_by_protocol(url, redirected_by)
        if self.allow is not None:
            more = f" and {len(self.allow) - _NAMED} more" if len(self.allow) > _NAMED else ""
            reason = f"it lies outside allow={list(self.allow[:_NAMED])}{more}"
            raise TargetNotAllowed(url, reason, describe_remedy(url))
        return url, self._admit_by_default(url, redirected_by)

    def check_adoption(self, url: str) -> None:
        """Raise TargetNotAllowed unless a document of the user may take ``url`` over from this source.

        A document of the user may point anywhere, with the user's credentials, and does not record from where it took
        its URLs. So it takes over only URLs that this source may open with the user's credentials.
        """
        _, access = self.admit(url)
        if access is not Access.OWN:
            rule = f"{self._stranger} names it, and your own documents take over only URLs on its server or bucket"
            raise TargetNotAllowed(url, rule, describe_remedy(url))

    def admit_real(self, path: str, real: Callable[[str], str]) -> None:
        """Raise TargetNotAllowed unless the user named a local protocol, or ``path`` lies in a permitted directory.

        ``path`` is local, and has no symbolic links; ``real`` resolves the symbolic links of the permitted directories.
        A source that is a local directory is permitted.
        """
        if self.protocols.intersection(LOCAL):
            return
        own = split_chain(self.source)[-1:] if self.source is not None and is_trusted(self.source) else []
        paths = [_find_local_path(prefix) for prefix in (*(self.allow or ()), *self.prefixes, *own)]
        local = {path: True for path in paths if path is not None}
        if find_longest_prefix(local, path) is not None:  # a directory above ``path`` has no links, either
            return
        roots = {real(prefix): True for prefix in local}
        if find_longest_prefix(roots, path) is None:
            rule = "a symbolic link leads there from a permitted directory"
            raise TargetNotAllowed(path, rule, describe_remedy(path))

    @property
    def _stranger(self) -> str:
        return f"a manifest from elsewhere ({self.source})"

    def _is_source(self, url: str) -> bool:
        """Return whether ``url`` is the source itself, lies below the source, or is another member of its archive."""
        source = self.source or ""
        if len(split_chain(source)) > 1:  # the first link determines the filesystem that opens the chain
            same = protocol_of(url) == protocol_of(source)
            return url == source or (same and url.partition("::")[2] == source.partition("::")[2] != "")
        below = source.rstrip("/") + "/"
        return f"{url}/" == below or url == source or (url.startswith(below) and not leads_out(url))

    def _add_cache_before(self, url: str) -> str:
        """Return the cache in front of the source (``simplecache::``) if ``url`` has the same cache; else ``""``."""
        cache, mark, _ = (self.source or "").partition("::")
        is_cache = mark and "://" not in cache and cache not in ARCHIVES
        return cache + mark if is_cache and url.startswith(cache + mark) else ""

    def _add_own_login(self, url: str) -> str | None:
        """Return the canonical ``url`` if it has the login in the URL of the source, on the same server; else None."""
        source, parts = urlsplit(self.source or ""), urlsplit(url)
        login, at, _ = source.netloc.rpartition("@")
        if not at or source.scheme not in WEB or (parts.scheme, parts.netloc) != (source.scheme, source.netloc):
            return None
        head, separator, rest = canonicalize(url.replace(login + at, "", 1)).partition("://")
        return f"{head}{separator}{login}{at}{rest}"

    def _is_own_host(self, url: str, redirected_by: str) -> bool:
        """Return whether the source redirects to another port of its own host, like hubs that sign URLs for a store."""
        source = self.source or ""
        if len(split_chain(source)) == 1 and source == server_of(source):
            return False  # this is the rule for a recorded origin: ``source`` is only a server
        protocol, host, _ = origin_of(source)
        is_own = (
            self._is_source(redirected_by) or redirected_by == split_chain(source)[-1]
        )  # the source, or its archive
        return is_own and origin_of(url)[:2] in ((protocol, host), ("https", host))

    def _is_named(self, url: str, *, by_protocol: bool) -> bool:
        """Return whether the user named a prefix of ``url``, or with ``by_protocol`` its protocol.

        For a chain, this must hold for each link.
        """
        named = self.named_prefixes
        *firsts, last = split_chain(url)
        protocols = [*(protocol_of(link) or link.lower() for link in firsts), protocol_of(last) or "file"]
        return all(
            (by_protocol and protocol in self.protocols)
            or (link in named and not leads_out(link))
            or find_longest_prefix(named, link) is not None
            for link, protocol in zip([*firsts, last], protocols, strict=True)
        )

    def _admit_by_protocol(self, url: str, redirected_by: str | None) -> Access:
        """Return the access to ``url``, whose protocol the user named; TargetNotAllowed for a private network."""
        if self.source is None or is_trusted(self.source):
            return Access.OWN
        own = origin_of(self.source)
        named = self.named_prefixes
        elsewhere = [
            link
            for link in split_chain(url)
            if "://" in link and protocol_of(link) not in (*LOCAL, *ARCHIVES, "memory")
            if origin_of(link) != own and find_longest_prefix(named, link) is None
        ]
        granted = [self._require_public_server(link, redirected_by, Access.LENT) for link in elsewhere]
        return min(granted, default=Access.OWN)

    def _admit_by_default(self, url: str, redirected_by: str | None) -> Access:
        protocol = protocol_of(url)
        if len(split_chain(url)) > 1:
            raise TargetNotAllowed(url, f"{self._stranger} may not chain filesystems", describe_remedy(url))
        if protocol == "data":
            return Access.NONE
        if protocol is None or protocol in LOCAL or protocol == "memory":
            rule = f"{self._stranger} may not point to this machine's files and memory"
            raise TargetNotAllowed(url, rule, describe_remedy(url))
        if origin_of(url) == origin_of(self.source or ""):
            return Access.OWN
        if protocol not in ANONYMOUS:
            rule = f"{self._stranger} may point to web servers and object stores, not to {protocol}://"
            raise TargetNotAllowed(url, rule, describe_remedy(url))
        return self._require_public_server(url, redirected_by, Access.NONE)

    def _require_public_server(self, url: str, redirected_by: str | None, access: Access) -> Access:
        """Return ``access``; TargetNotAllowed if ``url`` is spelled as an address of a private network."""
        host = _find_host(url)
        if host is None or not is_private(host):
            return access
        if redirected_by is not None and self._is_own_host(url, redirected_by):
            return Access.OWN  # this permits the connection; credentials are not sent to another port
        raise TargetNotAllowed(url, f"{self._stranger} may not point into private networks", describe_remedy(url))


@lru_cache(64)  # each source of a cube has a rule with the same prefixes
def _parse_prefixes(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_parse_prefix, prefixes))


def _parse_prefix(prefix: Any) -> str:
    """Return the canonical spelling of a prefix in ``allow=`` or ``options=``; ValueError if it has none."""
    if not isinstance(prefix, str) or ("://" not in prefix and not prefix.startswith("/")):
        raise ValueError(f"invalid URL prefix {prefix!r}: expected one such as 's3://bucket/path/'")
    try:
        return canonicalize(prefix)
    except ValueError as e:
        advice = "; give them as options of its filesystem" if "credentials" in str(e) else ""
        raise ValueError(sanitize(f"invalid URL prefix {prefix!r} in allow= or options=: {e}{advice}")) from None


_LOCAL_STARTS = ("", *(f"{protocol}://" for protocol in LOCAL))  # before a path, each means the same file


def _find_local_path(prefix: str) -> str | None:
    """Return the path of a local ``prefix`` (``file://``: the root); None for other prefixes."""
    protocol, separator, path = prefix.rpartition("://")
    if separator and protocol not in LOCAL:
        return None
    return "/" if separator and not path else path if path.startswith("/") else None


_NAMED = 5  # the most prefixes that an error names
INSIDE = "a manifest from elsewhere may not point into private networks"


def describe_remedy(url: str, purpose: str = "If you trust it") -> str:
    """Return advice for the user: the option that admits ``url``, and other URLs of its server or directory."""
    if len(split_chain(url)) > 1:
        return "If you trust the manifest, pass allow='any'"
    place = repr(_find_prefix(url))
    return f"{purpose}, pass options={{{place}: {{}}}}; if you pass allow=, add {place} to it instead"


def _find_prefix(url: str) -> str:
    """Return the prefix of ``url`` that advice names: its server or bucket, or its local directory."""
    if len(split_chain(url)) > 1 or protocol_of(url) in (None, *LOCAL):
        return url.rpartition("/")[0] + "/"
    return server_of(url) + "/"
