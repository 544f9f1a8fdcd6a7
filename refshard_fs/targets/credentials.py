"""Decide which server gets the user's credentials: one rule, `find_grant`, also for archives. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
from fsspec.spec import AbstractFileSystem

from refshard_fs.security import policy
from refshard_fs.security.admission import ANONYMOUS, Access, Admission, is_trusted, try_canonicalize
from refshard_fs.targets.failures import Retry

InstanceOrOptions: TypeAlias = AbstractFileSystem | Mapping[str, Any]
Rules: TypeAlias = tuple[Admission, ...]  # each rule may refuse a URL; without rules all URLs are admitted


class PoolOptions(msgspec.Struct, frozen=True, eq=False):
    """The options for opening targets.

    ``by_protocol`` maps a protocol to an instance or to options; ``by_prefix`` maps a URL prefix, in its canonical
    spelling, to an instance or to options. The longest prefix of a URL takes precedence over the protocol.
    """

    by_protocol: Mapping[str | None, InstanceOrOptions] = {}
    by_prefix: Mapping[str, InstanceOrOptions] = {}
    admission: Admission = Admission()
    retry: Retry = Retry()
    fast_s3: bool = True
    rule_of: Callable[[str], Admission] | None = None  # the rule for the URLs of another set, by its server
    only_sizes: tuple[str, ...] = ()  # prefixes of objects whose answers are compared by size alone, not by version

    def with_fallback(self, given: Mapping[str, Any], protocol: str, source: str | None) -> PoolOptions:
        """Return these options, with the options ``given`` for ``protocol``, the protocol of the set's first reference.

        The author of a set from elsewhere chose its references. So for such a set, ``given`` is only for the server of
        the set, if the URL of the set has that protocol. ``source`` is the URL of the set, None for a set in memory.
        """
        if protocol in self.by_protocol:
            return self
        if source is None or is_trusted(source):
            return msgspec.structs.replace(self, by_protocol={**self.by_protocol, protocol: given})
        own = {policy.server_of(source): given} if policy.protocol_of(source) == protocol else {}
        return msgspec.structs.replace(self, by_prefix={**own, **self.by_prefix})

    def find_options(self, url: str) -> InstanceOrOptions:
        """Return the instance or the options for ``url``."""
        return self.find(url)[1]

    def find(self, url: str) -> tuple[tuple[str, ...], InstanceOrOptions]:
        """Return a token that identifies the instance or options for ``url``, and the instance or options.

        The last item of the token is the protocol.
        """
        named = policy.protocol_of(url)
        protocol = named or "file"
        prefix = policy.find_longest_prefix(self.by_prefix, try_canonicalize(url)) if self.by_prefix else None
        if prefix is not None:
            return ("prefix", prefix[0], protocol), prefix[1]
        return (protocol,), self.by_protocol.get(named, self.by_protocol.get(protocol, {}))


class Grant(NamedTuple):
    """A permitted URL, and the instance or options that open it."""

    url: str  # in the spelling that the rules have admitted
    access: Access
    token: tuple[str, ...]  # identifies the instance or options: it ends in the protocol
    given: InstanceOrOptions  # the instance or options that open the URL


def find_grant(
    url: str, options: PoolOptions, rules: Rules, *, resolve: Callable[[str, Rules], str] | None = None
) -> Grant:
    """Return the grant to open ``url`` with the credentials for its server; TargetNotAllowed if a rule refuses it.

    The user's options for the longest prefix of the URL apply, or else the options for its protocol. There is a rule
    for each set that named the URL, and each rule may lower the access: the server gets the user's credentials
    (`Access.OWN`), the credentials for its protocol (`Access.LENT`, for public servers only), or none. ``resolve``
    resolves the symbolic links of a local path, before its options are looked up.
    """
    url, access = admit_url(url, rules)
    if resolve is not None:
        url = resolve(url, rules)
    return _make_grant(url, access, *options.find(url))


def find_archive_grant(url: str, options: PoolOptions, chain: Grant, given_in_chain: Mapping[str, Any]) -> Grant:
    """Return the grant to open the archive ``url`` in a chain that reads one of its members.

    ``chain`` is the grant of the whole chain, and its access applies. The chain's options for the archive,
    ``given_in_chain``, take precedence over the options for ``url``.
    """
    token, given = options.find(url)
    if given_in_chain:
        token, given = ("in a chain", repr(given_in_chain), token[-1]), given_in_chain
    return _make_grant(url, chain.access, token, given)


def _make_grant(url: str, access: Access, token: tuple[str, ...], given: InstanceOrOptions) -> Grant:
    if access is Access.NONE:
        return Grant(url, access, ("nobody", token[-1]), ANONYMOUS.get(token[-1], {}))
    return Grant(url, access, ("lent", *token) if access is Access.LENT else token, given)


def admit_url(url: str, rules: Rules, redirected_by: str | None = None) -> tuple[str, Access]:
    """Return the URL to open for ``url``, and the least access that any of ``rules`` grants to it."""
    access = Access.OWN
    head, separator, rest = url.partition("://")
    if separator and not head.islower() and "::" not in head:
        url = head.lower() + separator + rest
    for rule in rules:
        url, granted = rule.admit(url, redirected_by)
        access = min(access, granted)
    return url, access
