"""Expand patterns: the sources that they match, in natural order."""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import unquote

from refshard_fs.core.model import Listed, Load, Names, Raw, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.security.admission import WEB
from refshard_fs.security.policy import protocol_of
from refshard_fs.sets.link_page import parse_link_page
from refshard_fs.sets.scanning import choose_reading_options
from refshard_fs.source.in_memory_source import make_portable_source
from refshard_fs.source.normalizing import is_pattern, parse_options
from refshard_fs.source.source import Source

# Suffixes of indexes of GRIB files, which are left out if the files match. Their names have the whole name of the file,
# or its name without the suffix; cfgrib adds a digest.
INDEXES: Final = (".idx", ".index")
_DIGEST: Final = re.compile(r"\.[0-9a-f]{5}\Z")
_GRIB: Final = (".grib2", ".grb2", ".grib", ".grb")
DEEPEST: Final = 64  # levels of directories that ``**`` searches
_DIGITS: Final = re.compile(r"(\d+)")
_ONE_OF: Final = re.compile(r"\[[^\]/]+\]")


def expand(sets: Any, options: Mapping[str, Any]) -> list[Any]:
    """Return the sources ``sets``, one or a list, with each pattern (``*``, ``?``, ``[...]``) replaced by its matches.

    In the URL of a web server, ``?`` begins a query. A name with brackets and no match is the name of a source.
    ManifestError if a pattern matches nothing, or its directory cannot be listed.
    """
    if isinstance(sets, str | os.PathLike):
        sets = [os.fspath(sets)]
    if isinstance(sets, bytes | Mapping) or not isinstance(sets, Sequence):
        return cast("list[Any]", sets)  # the caller reports the error
    found: list[Any] = []
    for fo in sets:
        if isinstance(fo, str) and is_pattern(fo):
            found += _find_matches(fo, options)
        elif isinstance(fo, str) and "::" not in fo and _ONE_OF.search(fo.partition("://")[2].partition("/")[2] or fo):
            try:
                found += _find_matches(fo, options)
            except ManifestError:  # not a pattern, but a name with brackets
                found.append(fo)
        else:
            found.append(fo)
    return found


def make_natural_key(text: str) -> tuple[list[Any], str]:
    """Return the key by which texts with numbers in them sort: ``day2`` before ``day10``; equal numbers as texts."""
    return [int(part) if number % 2 else part for number, part in enumerate(_DIGITS.split(text))], text


def _find_matches(pattern: str, options: Mapping[str, Any]) -> list[str]:
    url = make_portable_source(pattern, options.get("target_protocol"), None, True)
    source = Source.of(parse_options({}, choose_reading_options([str(url)], options)))
    found = set(source.run("", lambda: _walk(str(url))))
    indexed = found | {name.rpartition(".")[0] for name in found if name.endswith(_GRIB)}
    found -= {name for name in found if name.endswith(INDEXES) and not indexed.isdisjoint(_list_bases(name))}
    return sorted(found, key=make_natural_key)


def _list_bases(name: str) -> list[str]:
    """Return the names that the file of the index ``name`` may have: without the suffix, and without the digest."""
    base = name.rpartition(".")[0]
    return [base, _DIGEST.sub("", base)]


def _walk(url: str) -> Steps[list[str]]:
    """Return all URLs that a pattern matches. The directories of one level are listed together.

    ``**`` stands for any number of directories. ManifestError, with similar names, if nothing matches.
    """
    scheme, colons, path = url.rpartition("://")
    first, *steps = path.split("/")
    known = [f"{scheme}{colons}{first}"]
    listed: dict[str, Sequence[Listed]] = {}
    for depth, step in enumerate(steps):
        if step == "**":
            known = yield from _list_directories(known, listed, url)
            continue
        if "*" not in step and "?" not in step and _ONE_OF.search(step) is None:
            known = [f"{place}/{step}" for place in known]
            continue
        matches = re.compile(fnmatch.translate(step)).match
        yield from _list(known, listed, url)
        is_last = depth == len(steps) - 1
        below: list[str] = []
        for folder in known:
            names = [n.name for n in listed[folder] if is_last or n.is_directory]
            if any("::" in name for name in names):
                raise ManifestError(f"{url!r}: expected names without '::', which separates the links of a chain")
            exact = [name for name in names if name == step]  # a name with brackets that is not a pattern
            fitting = exact or [name for name in names if matches(unquote(name) if protocol_of(url) in WEB else name)]
            below += [f"{folder}/{name}" for name in fitting]
        if not below:
            others = list(dict.fromkeys(n.name for folder in known for n in listed[folder]))
            near = difflib.get_close_matches(step, others, 3, 0.3) or others[:3]
            more = f" and {len(others) - len(near):,} others" if len(others) > len(near) else ""
            has = f"has {', '.join(near)}{more}" if others else "is empty"
            raise ManifestError(f"{url!r} matches nothing: {known[0] or '/'} {has}")
        known = below
    return known


def _list_directories(folders: Sequence[str], listed: dict[str, Sequence[Listed]], url: str) -> Steps[list[str]]:
    """Return ``folders`` and all directories below them."""
    found, level = list(folders), list(folders)
    for _ in range(DEEPEST):
        yield from _list(level, listed, url)
        level = [f"{folder}/{n.name}" for folder in level for n in listed[folder] if n.is_directory]
        if not level:
            return found
        found += level
    raise ManifestError(
        f"{url!r}: ** searches at most {DEEPEST} levels of directories, and there are more: name the first directories"
    )


def _list(folders: Sequence[str], listed: dict[str, Sequence[Listed]], url: str) -> Steps[None]:
    """Put the members of ``folders`` into ``listed``, if they are not there yet; a missing folder has no members."""
    unknown = [folder for folder in folders if folder not in listed]
    found: Sequence[Sequence[Listed] | None] = ()
    if unknown and protocol_of(url) in WEB:
        places = [f"{folder}/" for folder in unknown]
        pages = yield tuple(Load(Span(place, optional=True), Raw()) for place in places)
        found = [page and parse_link_page(page, place) for page, place in zip(pages, places, strict=True)]
    elif unknown:
        found = yield tuple(Names(folder or "/") for folder in unknown)
    if unknown == list(folders) and all(names is None for names in found):
        raise ManifestError(f"{url!r} matches nothing: {(yield from _explain_unlisted(url, folders[0]))}")
    listed.update((folder, names or ()) for folder, names in zip(unknown, found, strict=True))


def _explain_unlisted(url: str, folder: str) -> Steps[str]:
    """Return why ``folder`` has no listing, and what to do."""
    protocol = protocol_of(url)
    if protocol in WEB:
        return f"{folder}/ is not a page of links to files, so that the folder cannot be listed: pass a list of URLs"
    if protocol not in (None, "file"):
        return f"{folder} does not exist, or cannot be listed. If the server lists nothing, pass a list of URLs"
    above, _, name = folder.rpartition("/")
    (siblings,) = yield (Names(above or "/"),)
    near = difflib.get_close_matches(name, [n.name for n in siblings or () if n.is_directory], 3)
    return f"there is no directory {folder}" + (f": did you mean {' or '.join(near)}?" if near else "")
