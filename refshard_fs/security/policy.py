"""Resolve URLs against the URL of a manifest, split chains, and match prefixes. No I/O here.

Callers open the same string that they matched.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import TypeVar, cast
from urllib.parse import quote, unquote

T = TypeVar("T")

LOCAL = ("file", "local")
DECOMPRESS = "decompress::"  # stands before the URL of a file that is compressed as a whole
ARCHIVES = ("zip", "tar", "libarchive", "ar", "asar", "sqlar")  # protocols whose paths are members

_MAX_DECODINGS = 4  # servers and the proxies before them may percent-decode a path so many times

_SERVER = re.compile(r"[a-z][a-z0-9+.-]*://[\w.~-]+(?::\d+)?/", re.IGNORECASE | re.ASCII)
_LITERAL = re.compile(r"https?://\[[0-9a-f:.]+\](?=[:/?#]|$)", re.IGNORECASE | re.ASCII)


def split_chain(url: str) -> list[str]:
    """Return the links of a chain; the URL alone if it is not a chain.

    The ``::`` in an IPv6 address does not make a URL a chain; but within a chain it separates links, as in fsspec.
    """
    parts = url.split("::")
    if len(parts) > 1 and (literal := _LITERAL.match(url)) and "::" not in url[literal.end() :]:
        return [url]
    return parts


def _split_first_link(url: str) -> tuple[str, str, str]:
    """Return the first link of a chain, ``::``, and the other links; for other URLs, the URL and two empty texts."""
    first, *rest = split_chain(url)
    return first, "::" if rest else "", "::".join(rest)


def protocol_of(url: str) -> str | None:
    """Return the protocol of ``url``, or of the first link of a chain, in lower case; None for a bare path."""
    head = url.split("::", 1)[0]
    if "://" in head:
        return head.split("://", 1)[0].lower()
    return head.lower() if "::" in url else "data" if url.startswith("data:") else None


def has_protocol(url: str) -> bool:
    """Return whether `protocol_of` returns a protocol; twice as fast for most URLs."""
    return ("://" in url and "::" not in url) or protocol_of(url) is not None


def find_common_server(urls: Sequence[str | None]) -> str | None:
    """Return the protocol and the server or bucket of all ``urls``, such as ``s3://bucket/``.

    None if there are several or none, or if one of ``urls`` is None, a path without a protocol, or a chain.
    """
    found = _SERVER.match(urls[0] or "") if urls else None
    if found is None or None in urls:
        return None
    text = "\n".join(["", *cast(Sequence[str], urls)])
    starts = text.count("\n" + found[0])
    return found[0] if starts == text.count("\n") == len(urls) and "::" not in text else None


def is_absolute(path: str) -> bool:
    """Return whether a path without a protocol is an absolute path of POSIX or Windows."""
    return path.startswith(("/", "~")) or (len(path) > 2 and path[1] == ":" and path[2] in "\\/")


def relative_to(base: str, path: str) -> str:
    """Return the URL of ``path``, relative to the directory URL ``base``; ``..`` cannot leave the host or bucket."""
    head, sep, tail = _split_first_link(base)
    if sep and "://" not in head:  # a chain such as zip::s3://b/a.zip: the path is a member
        return f"{head}://{path}::{tail}"
    if sep:
        return relative_to(head, path) + sep + tail
    protocol, sep, rest = head.partition("://")
    if not sep:
        protocol, rest = "", head
    root, slash, folder = rest.partition("/")
    joined = posixpath.join("/" + folder, path.removeprefix("./")).lstrip("/")
    if protocol in ("", "http", "https", *LOCAL) or ".." in path.split("/"):  # in object stores, '.' and '' are names
        joined = posixpath.normpath("/" + joined).lstrip("/")
    return f"{protocol}{sep}{root}{slash or (root and '/')}{joined}"


def resolve(url: str, base: str | None, protocol: str | None) -> str:
    """Return the absolute URL for ``url`` in a manifest.

    A URL with a protocol is unchanged. A path without one belongs to ``protocol``, if that is not None and not local.
    Otherwise an absolute path is a local file, and a relative path starts at ``base``, the directory of the manifest
    (None: the working directory).
    """
    if has_protocol(url):
        return url
    if protocol is not None and protocol not in LOCAL:
        return f"{protocol}://{url}"
    is_home = url.startswith("~") and base is not None and protocol_of(base) in (None, *LOCAL)
    if base is None or is_home or (is_absolute(url) and not url.startswith("~")):
        return url
    return relative_to(base, url)


def find_longest_prefix(table: Mapping[str, T], url: str) -> tuple[str, T] | None:
    """Return the item of ``table`` whose key is the longest prefix of ``url``; None if no key is a prefix.

    Prefixes end between segments: ``s3://data`` and ``s3://data/`` are the same prefix, and neither is a
    prefix of ``s3://data-private/x``.
    """
    if not table:
        return None
    if leads_out(url):
        url = server_of(_split_first_link(url)[0])
    prefixes = _index_prefixes(tuple(table))
    end = len(url)
    while end >= 0:
        for stem in (url[:end], url[: end + 1]):  # "s3:" and "s3://", whose last slash is at `end`
            prefix = prefixes.get(stem) if stem == url[:end] or stem.endswith("://") else None
            if prefix is not None:
                return stem, table[prefix]
        end = url.rfind("/", 0, end)
    return None


@lru_cache(64)  # `allow=` may have thousands of prefixes, which are searched for each chunk
def _index_prefixes(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the prefixes by their text without slashes at the end; of equal prefixes, the first is kept."""
    return {prefix if prefix.endswith("://") else prefix.rstrip("/"): prefix for prefix in reversed(prefixes)}


def leads_out(url: str) -> bool:
    """Return whether a server may resolve ``url`` to a place outside the directories that it names.

    Segments ``.`` and ``..`` lead there, also if they are percent-encoded (even several times), stand between
    backslashes, or have a parameter that some servers ignore (``..;x``).
    """
    if ".." not in url and "/." not in url and "%" not in url and "\\" not in url:
        return False
    path = url.partition("://")[2].partition("?")[0].partition("#")[0] if "://" in url else url
    for _ in range(_MAX_DECODINGS):
        before, path = path, unquote(path, errors="replace")
        if path == before:
            break
    return any(step.partition(";")[0] in (".", "..") for step in path.replace("\\", "/").split("/"))


def server_of(url: str) -> str:
    """Return the protocol and the server or bucket of ``url``; a chain, or a path without a protocol, is unchanged."""
    protocol, separator, rest = url.partition("://")
    if not separator or len(split_chain(url)) > 1:
        return url
    return protocol + separator + rest.partition("/")[0].partition("?")[0].partition("#")[0]


def place_of(url: str) -> str | None:
    """Return the prefix of the bucket or host of ``url``, or of the last link of a chain; None on this machine."""
    last = split_chain(url)[-1]
    return None if protocol_of(last) in (None, "data", "memory", *LOCAL) else server_of(last) + "/"


def directory_of(url: str | PurePath) -> str:
    """Return the directory URL of the document at ``url``."""
    text = str(url)
    head, sep, tail = _split_first_link(text)
    if sep and "://" not in head:  # a link without a path, such as a cache: the next link is the document
        return directory_of(tail)
    folder = head.rpartition("/")[0]
    if sep and folder.endswith(":/"):  # a member at the root of an archive
        return f"{folder}/{sep}{tail}"
    if not folder or folder.endswith(":/"):
        folder = head.rstrip("/") if "://" in head else folder or "."
    return folder + sep + tail


def make_locator(url: str) -> Callable[[str], str]:
    """Return a function that returns, for a key, the URL of its object below the directory ``url``.

    The key is inserted before a query (such as a signature); in a chain, into the link of an archive, or into the link
    after a cache.
    """
    head, sep, tail = _split_first_link(url)
    if sep and "://" not in head and head not in ARCHIVES:  # a cache, as in simplecache::https://...
        inner = make_locator(tail)
        return lambda key: f"{head}::{inner(key)}"
    if sep and "://" not in head:
        return lambda key: f"{head}://{key}::{tail}"
    query = ""
    is_http = head.startswith(("http://", "https://"))
    if is_http:
        head, mark, query = head.partition("?")
        query = mark + query
    protocol, mark, path = head.partition("://")
    stem = protocol + mark + path.rstrip("/") if mark else head.rstrip("/")
    slash = "" if mark and not path else "/"

    def locate(key: str) -> str:
        path = quote(key) if is_http else key
        return f"{stem}{slash if key else ''}{path}{query}{sep}{tail}"

    return locate
