"""Write the document of a cube, which names the sets that the cube joins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.security.policy import directory_of, protocol_of
from refshard_fs.source.source import Source
from refshard_fs.stores.document import DocumentObject
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.stores import Stores

REMARK: Final = "only refshard can read this document"


def make_cube_document(source: Source) -> ConcatDocument | None:
    """Return the document of the cube that ``source`` shows, with its selections; None if it does not show a cube.

    URLs stay as they are written; `KeySpace.resolve` of the cube makes them absolute. Raise TargetNotAllowed for a URL
    that ``source`` may not open with the user's credentials: the saved document would be the user's own, and could.
    """
    cube = source.open().cube
    if cube is None:
        return None
    document: ConcatDocument = cube.document
    for url in document.urls:
        source.admission.check_adoption(cube.resolve(url))
    return msgspec.structs.replace(document, view=(*document.view, *source.options.select))


def save_document(
    document: ConcatDocument,
    url: str,
    stores: Stores | Mapping[str, Any],
    resolve: Callable[[str], str] = str,
    *,
    only_new: bool = False,
) -> None:
    """Write ``document`` to ``url``; readers never see a part of it. ``resolve`` makes the document's URLs absolute.

    URLs below the directory of ``url`` are written relative to this directory. With ``only_new``, raise ConflictError
    if ``url`` exists.
    """
    spell = make_relative_speller(url)
    data = document.dumps(lambda part: spell(resolve(part)))
    if only_new:
        DocumentObject(url, stores, None).put(data)
    else:
        Objects(url, stores).put("", (data,))


def make_relative_speller(url: str) -> Callable[[str], str]:
    """Return a function that makes URLs below the directory of ``url`` relative, and leaves other URLs unchanged."""
    absolute = url if protocol_of(url) is not None else os.path.abspath(os.path.expanduser(url))
    directory = directory_of(absolute)
    stem = directory if directory.endswith("/") else directory + "/"

    def respell(part: str) -> str:
        rest = part.removeprefix(stem)
        plain = rest != part and "::" not in part and protocol_of(rest) is None and not rest.startswith("/")
        return rest if plain else part

    return respell
