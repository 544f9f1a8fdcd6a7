"""A table states which server gets the user's credentials: one rule decides it."""

from __future__ import annotations

from typing import Any

import fsspec
import pytest

from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import Access, Admission
from refshard_fs.source.options import Options
from refshard_fs.source.settings import Settings
from refshard_fs.targets.credentials import Grant, PoolOptions, find_archive_grant, find_grant

MINE = {"key": "mine"}
OTHER = {"key": "other"}
OWN, LENT, NONE = Access.OWN, Access.LENT, Access.NONE
REFUSED = "refused"
ANON: dict[str, Any] = {"anon": True}

LOCAL = "/data/refs.json"  # a set of the user
S3 = "s3://sets/refs.json"  # a set from elsewhere, and so is the next one
WEB = "https://sets.example/refs.json"

# The source, keywords, and a URL that the source refers to; then the expected access, and the options for the URL.
TABLE: list[tuple[Any, dict[str, Any], str, Any, Any]] = [
    # The user's own set may point anywhere, with the credentials of this machine or of the keywords.
    (LOCAL, {}, "s3://bucket/x", OWN, {}),
    (LOCAL, {}, "https://inside.example/x", OWN, {}),
    (LOCAL, {}, "http://127.0.0.1/x", OWN, {}),
    (LOCAL, {"remote_protocol": "s3", "remote_options": MINE}, "s3://bucket/x", OWN, MINE),
    (LOCAL, {"remote_protocol": "s3", "remote_options": MINE}, "S3://bucket/x", OWN, MINE),
    (LOCAL, {"remote_protocol": "s3", "remote_options": MINE}, "s3a://bucket/x", OWN, MINE),
    (LOCAL, {"remote_protocol": "s3", "remote_options": MINE}, "gs://bucket/x", OWN, {}),
    (LOCAL, {"remote_protocol": "s3", "remote_options": MINE}, "https://host.example/x", OWN, {}),
    (LOCAL, {"remote_options": MINE}, "s3://bucket/x", OWN, MINE),  # the first protocol that references name
    (LOCAL, {"target_options": MINE}, "s3://bucket/x", OWN, {}),
    ({"k": "v"}, {"remote_options": MINE}, "s3://bucket/x", OWN, MINE),
    # The longest prefix wins over shorter ones, and over the protocol.
    (LOCAL, {"options": {"s3://b/": MINE, "s3://b/p/": OTHER}}, "s3://b/p/x", OWN, OTHER),
    (LOCAL, {"options": {"s3://b/": MINE, "s3://b/p/": OTHER}}, "s3://b/x", OWN, MINE),
    (LOCAL, {"options": {"s3://b/": MINE}}, "s3://b-private/x", OWN, {}),
    (LOCAL, {"options": {"s3://b/": OTHER}, "remote_protocol": "s3", "remote_options": MINE}, "s3://b/x", OWN, OTHER),
    (LOCAL, {"options": {"https://good.example/a/": MINE}}, "https://good.example/a/../b", OWN, {}),
    # For a set from elsewhere, the credentials that open it are sent to its own server only.
    (S3, {}, "s3://sets/x", OWN, {}),
    (S3, {}, "s3://other/x", NONE, ANON),
    (S3, {}, "https://host.example/x", NONE, {}),
    (S3, {"target_options": MINE}, S3, OWN, MINE),
    (S3, {"target_options": MINE}, "s3://sets/x", OWN, MINE),
    (S3, {"ref_storage_args": MINE}, "s3://sets/x", OWN, MINE),
    (S3, {"target_options": MINE}, "s3://other/x", NONE, ANON),
    (S3, MINE, "s3://sets/x", OWN, MINE),
    (S3, MINE, "s3://other/x", NONE, ANON),
    (WEB, {"target_options": MINE}, "https://sets.example/x", OWN, MINE),
    (WEB, {"target_options": MINE}, "https://sets.example:8443/x", NONE, {}),
    (WEB, {"target_options": MINE}, "http://sets.example/x", NONE, {}),
    (WEB, {"target_options": MINE}, "https://else.example/x", NONE, {}),
    # Options without a protocol: for a set from elsewhere, they are for its own server.
    (S3, {"remote_options": MINE}, "s3://sets/x", OWN, MINE),
    (S3, {"remote_options": MINE}, "s3://other/x", NONE, ANON),
    (WEB, {"remote_options": MINE}, "s3://other/x", NONE, ANON),
    # If the user names a protocol, its credentials are lent; if the user names a prefix, access is full.
    (WEB, {"remote_protocol": "s3", "remote_options": MINE}, "s3://other/x", LENT, MINE),
    (S3, {"remote_protocol": "s3", "remote_options": MINE}, "s3://sets/x", OWN, MINE),
    (WEB, {"remote_protocol": "https", "remote_options": MINE}, "https://192.168.0.1/x", REFUSED, None),
    (WEB, {"options": {"s3://b/": MINE}}, "s3://b/x", OWN, MINE),
    (WEB, {"options": {"s3://b/": MINE}}, "s3://other/x", NONE, ANON),
    (WEB, {"options": {"https://192.168.0.1/": MINE}}, "https://192.168.0.1/x", OWN, MINE),
    (WEB, {"allow": ["s3://b/"]}, "s3://b/x", OWN, {}),
    (WEB, {"allow": ["s3://b/"]}, "s3://other/x", REFUSED, None),
    (WEB, {"allow": "any", "remote_protocol": "s3", "remote_options": MINE}, "s3://other/x", OWN, MINE),
    # Refused: URLs of this machine or of a private network, chains, and URLs with a login.
    (WEB, {}, "/etc/passwd", REFUSED, None),
    (WEB, {}, "file:///etc/passwd", REFUSED, None),
    (WEB, {}, "memory://x", REFUSED, None),
    (WEB, {}, "http://127.0.0.1/x", REFUSED, None),
    (WEB, {}, "http://169.254.169.254/x", REFUSED, None),
    (WEB, {}, "zip://x::s3://b/a.zip", REFUSED, None),
    (WEB, {}, "https://me:word@host.example/x", REFUSED, None),
    (WEB, {}, "ftp://host.example/x", REFUSED, None),
]


def find_options(fo: Any, keywords: dict[str, Any], url: str) -> PoolOptions:
    """Return the options with which a filesystem of ``fo`` opens targets if its first reference is ``url``."""
    source = fsspec.filesystem("refshard", fo=fo).source.options.source
    settings = Settings.of(Options.parse(source, **keywords))
    protocol = url.partition("://")[0]
    if not settings.fallback:
        return settings.pool
    return settings.pool.with_fallback(settings.fallback, protocol, source if isinstance(source, str) else None)


@pytest.mark.parametrize(("fo", "keywords", "url", "access", "given"), TABLE)
def test_credentials_apply_by_prefix_and_origin(
    fo: Any, keywords: dict[str, Any], url: str, access: Any, given: Any
) -> None:
    options = find_options(fo, keywords, url)
    rules = () if options.admission.admits_all else (options.admission,)
    if access == REFUSED:
        with pytest.raises(TargetNotAllowed):
            find_grant(url, options, rules)
        return
    grant = find_grant(url, options, rules)
    assert (grant.access, grant.given) == (access, given)
    assert grant.token[-1] == url.partition("://")[0].lower()


def test_strictest_set_of_a_chain_decides() -> None:
    options = PoolOptions({"s3": MINE})
    user, stranger = Admission(), Admission.of(WEB, None, [], [])
    lender = Admission.of(WEB, None, ["s3"], [])
    granted = [find_grant("s3://b/x", options, rules) for rules in ((), (user,), (lender,), (lender, stranger))]
    assert [(grant.access, grant.given) for grant in granted] == [(OWN, MINE), (OWN, MINE), (LENT, MINE), (NONE, ANON)]
    assert len({grant.token for grant in granted}) == 3, "different credentials never share a connection"


@pytest.mark.parametrize("access", [OWN, LENT, NONE])
def test_archive_gets_the_access_of_its_chain(access: Any) -> None:
    options, url = PoolOptions({"s3": MINE}), "s3://b/a.zip"
    chain = Grant(f"zip://m::{url}", access, ("zip",), {})
    plain, nested = (find_archive_grant(url, options, chain, given) for given in ({}, {"key": "nested"}))
    assert (plain.access, nested.access) == (access, access)
    assert [plain.given, nested.given] == ([ANON, ANON] if access == NONE else [MINE, {"key": "nested"}])
    assert (plain.token == nested.token) == (access == NONE)


def test_options_are_chosen_by_the_target_of_a_link() -> None:
    options = PoolOptions(by_prefix={"/real": MINE})
    assert find_grant("/link/x", options, (), resolve=lambda url, rules: "/real/x").given == MINE
    assert find_grant("/link/x", options, ()).given == {}
