"""Admit URLs of manifests: the checked spelling is the one that is opened, and no forbidden place is admitted."""

from __future__ import annotations

import re
from contextlib import nullcontext as set_up
from urllib.parse import unquote, urlsplit

from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import Access, Admission, canonicalize, is_private
from refshard_fs.security.policy import find_longest_prefix, leads_out, protocol_of, server_of, split_chain

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    http:// https:// HTTP:// s3:// file:// memory:// zip:// :: // / \\ @ : ? # % %2e %2f %5c %252e .. . ; ..; ../ [::1]
    127.0.0.1 127.1 0x7f.1 2130706433 10.0.0.1 169.254.169.254 localhost pub.example allowed.example /a/ :80 :443 :8080
    [::ffff:127.0.0.1] xn-- .internal user:pass@
    """.split()
)
_RULES = (
    Admission.of("https://pub.example/sets/refs.json", None, (), ()),
    Admission.of("s3://data/refs.json", None, (), ()),
    Admission.of("https://pub.example/refs.json", ["https://allowed.example/a/"], (), ()),
)
_INSIDE = {"https://allowed.example/a/": True}


def make_seeds() -> list[bytes]:
    urls = ["https://pub.example/x.nc", "https://allowed.example/a/b?c#d", "http://8.8.8.8:8080/x", "s3://data/k"]
    urls += [
        "http://127.0.0.1/x",
        "zip://a::https://pub.example/x.zip",
        "https://allowed.example/a/%2e%2e%2fb",
        "/etc/x",
    ]
    return [url.encode() for url in urls]


def check_input(data: bytes) -> None:
    url = data.decode("utf-8", "replace")
    try:
        once = canonicalize(url)
        assert canonicalize(once) == once
    except ValueError:
        pass
    assert server_of(server_of(url)) == server_of(url)
    path = re.split(r"[?#]", url.partition("://")[2], maxsplit=1)[0]
    if "://" in url and ".." in unquote(unquote(path)).replace("\\", "/").split("/"):
        assert leads_out(url)
        assert find_longest_prefix(_INSIDE, url) is None
    for rule in _RULES:
        try:
            opened, access = rule.admit(url)
        except TargetNotAllowed as e:
            assert len(str(e)) < 100_000
            continue
        protocol = protocol_of(opened)
        if rule.allow is not None and not opened.startswith("https://pub.example/refs.json"):
            assert opened.startswith("https://allowed.example/a")
        assert protocol not in (None, "file", "local", "memory")
        assert len(split_chain(opened)) == 1 or protocol == "data"
        if access is Access.NONE and protocol in ("http", "https"):
            assert not is_private((urlsplit(opened).hostname or "").rstrip("."))
            assert "@" not in urlsplit(opened).netloc
