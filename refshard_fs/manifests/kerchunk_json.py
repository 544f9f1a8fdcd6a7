"""Kerchunk's JSON reference sets, versions 0 and 1, read into columns. No I/O here.

Spec: "References specification" of fsspec/kerchunk. Bytes may be compressed; what with is
told by their first bytes, whatever the name.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from numcodecs.zstd import Zstd

from refshard_fs import policy, zarrmeta
from refshard_fs.columns import WHOLE, Row
from refshard_fs.errors import ManifestError
from refshard_fs.formats import Format, OpenOptions, Probe
from refshard_fs.keys import normalise
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.reference_set import FlatKeySpace, ReferenceSet, Value
from refshard_fs.manifests.templates import Templates, expand_gen
from refshard_fs.model import Facts, Inline, Load, Pin, Span, Steps

__all__ = ["FORMAT", "JsonIndex", "decompress", "parse", "parse_document", "resolver"]


class JsonIndex(msgspec.Struct, frozen=True):
    """Decodes a reference set's bytes; ``where`` names it in errors."""

    where: str
    overrides: tuple[tuple[str, str], ...] = ()
    simple: bool = True

    def decode(self, data: bytes) -> ReferenceSet:
        return parse(data, self.where, dict(self.overrides), simple=self.simple)


def decompress(data: bytes, where: str) -> bytes:
    """Return ``data`` inflated, if its first bytes are those of gzip, zstd, bzip2 or xz."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            return bytes(Zstd().decode(data))
        if data.startswith(b"BZh"):
            return bz2.decompress(data)
        if data.startswith(b"\xfd7zXZ\x00"):
            return lzma.decompress(data)
    except (OSError, EOFError, RuntimeError, ValueError, lzma.LZMAError) as e:
        raise ManifestError(f"{where} is compressed and damaged: {e}") from e
    return data


def parse(data: bytes, where: str, overrides: Mapping[str, str], *, simple: bool = True) -> ReferenceSet:
    """Return the reference set in ``data``; ManifestError naming ``where`` and the key if it is none."""
    data = decompress(data, where)
    try:
        document = zarrmeta.loads(data)
    except ValueError as e:
        raise ManifestError(f"{where} is not JSON: {e}") from e
    if not isinstance(document, dict):
        raise ManifestError(f"{where} is no reference set: its JSON is no object, but {type(document).__name__}")
    return parse_document(document, where, overrides, simple=simple)


def parse_document(
    document: Mapping[str, Any], where: str, overrides: Mapping[str, str], *, simple: bool = True
) -> ReferenceSet:
    """Return the reference set that ``document`` (of either version) spells; it is not changed."""
    refs, templates, gen = _parts(document, where, overrides, simple)
    urls: dict[str | None, int] = {}
    expanded: dict[str, str] = {}
    values: dict[str, Value] = {}
    for key, value in refs.items():
        if not isinstance(key, str):
            raise ManifestError(f"{where}: the key {key!r} is no string")
        try:
            values[_key(key)] = _value(value, urls, expanded, templates)
        except ManifestError as e:
            raise ManifestError(f"{key!r} of {where}: {e}") from e
    if gen:
        try:
            for key, url, offset, length in expand_gen(gen, templates):
                target = urls.setdefault(url, len(urls))
                values[_key(key)] = Row(target, offset or 0, length)
        except ManifestError as e:
            raise ManifestError(f"{where}: {e}") from e
    return ReferenceSet.build(urls, values, where)


def _parts(
    document: Mapping[str, Any], where: str, overrides: Mapping[str, str], simple: bool
) -> tuple[Mapping[str, Any], Templates, list[Any]]:
    version = document.get("version")
    if version is None or isinstance(version, (str, list, dict)):
        if isinstance(document.get("refs"), Mapping):
            raise ManifestError(f'{where} has "refs" and no "version": add "version": 1 to it')
        return document, Templates({}), []
    if version != 1 or isinstance(version, bool):
        raise ManifestError(f"{where} is of version {version!r}; versions 0 and 1 are known")
    refs, templates, gen = document.get("refs", {}), document.get("templates") or {}, document.get("gen") or []
    if "refs" not in document and not gen:
        strays = [k for k in document if k not in ("version", "templates", "gen")]
        if strays:
            raise ManifestError(f'{where} is of version 1, and has keys such as {strays[0]!r} outside of "refs"')
    for name, part, kind in (("refs", refs, Mapping), ("templates", templates, Mapping), ("gen", gen, list)):
        if not isinstance(part, kind):
            raise ManifestError(f"{name!r} of {where} is a {type(part).__name__}, no {kind.__name__.lower()}")
    try:
        return refs, Templates(templates, overrides, simple=simple), gen
    except ManifestError as e:
        raise ManifestError(f"{where}: {e}") from e


def _key(key: str) -> str:
    if "\\" in key or "//" in key or key[:1] == "/" or key[-1:] == "/":
        key = normalise(key)
    if not key or "\0" in key or (".." in key and ".." in key.split("/")) or "/./" in f"/{key}/":
        raise ManifestError("a key is not empty, and has no NUL, and no segment '.' or '..'")
    return key


def _value(value: Any, urls: dict[str | None, int], expanded: dict[str, str], templates: Templates) -> Value:
    match value:
        case str() | bytes():
            return value
        case list() | tuple() if len(value) in (1, 3):
            url = value[0]
            if isinstance(url, str):
                full = expanded.get(url)
                if full is None:
                    full = expanded[url] = templates.expand(url)
                url = full
            elif url is not None:
                raise ManifestError(f"its URL is {url!r}, neither text nor null")
            target = urls.setdefault(url, len(urls))
            if len(value) == 1:
                return Row(target, 0, None)
            return Row(target, _count(value[1], "offset"), _count(value[2], "length"))
        case list() | tuple():
            raise ManifestError(
                f"a reference has one element or three, [url] or [url, offset, length], not {len(value)}"
            )
        case Mapping():
            return dict(value)
        case _:
            raise ManifestError(f"{value!r} is neither data nor a reference")


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < WHOLE:
        raise ManifestError(f"its {name} is {value!r}, no whole number ≥ 0")
    return value


def resolver(options: OpenOptions, directory: str | None) -> Callable[[str | None], str]:
    """Return how URLs of a manifest that lies in ``directory`` become absolute."""
    base = options.base_url if options.base_url is not None else directory

    def resolve(url: str | None) -> str:
        if url is None:
            if options.target is None:
                raise ManifestError("a reference without a URL needs target=, the URL it stands for")
            url = options.target
        if options.bare_as_is and options.base_url is None:
            return url
        if options.base_url is not None and policy.protocol_of(url) is None and not policy.is_absolute(url):
            return policy.relative_to(base or "", url)
        return policy.resolve(url, base, options.protocol)

    return resolve


def _recognises(probe: Probe) -> bool:
    head = probe.head
    if probe.is_directory:
        return False
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00")):
        return True
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def _open(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    index = JsonIndex(probe.url, options.template_overrides, options.simple_templates)
    whole = probe.facts is not None and probe.facts.size == len(probe.head)
    facts = probe.facts or Facts(None)
    pin = Pin(facts.etag, facts.last_modified, facts.size)
    refs: ReferenceSet = yield Load(Inline(probe.head) if whole else Span(probe.url, pin=pin), index)
    return FlatKeySpace(refs, resolver(options, policy.directory_of(probe.url)), probe.url)


FORMAT = Format("kerchunk-json", _recognises, _open)
