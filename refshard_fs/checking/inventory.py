"""All keys of a source that can be listed, also where the indexes of some of its shards are damaged."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Final

from refshard_fs.checking.findings import Findings
from refshard_fs.errors import DamagedIndex, NotListable
from refshard_fs.keys import join
from refshard_fs.keyspace import KeySpace
from refshard_fs.model import Listed
from refshard_fs.reading.engine import Engine
from refshard_fs.shards.view import ShardView

__all__ = ["CHUNK_NAME", "list_all"]

DOCUMENTS: Final = ("zarr.json", ".zarray", ".zgroup", ".zattrs")
CHUNK_NAME: Final = re.compile(r"c|(?:c[/.])?\d+(?:[/.]\d+)*")


async def list_all(
    keyspace: KeySpace,
    engine: Engine,
    findings: Findings,
    unlisted: MutableMapping[str, Exception],
    exists: Callable[[list[str]], Awaitable[list[str]]],
) -> list[str]:
    """Return all keys. A directory of chunks whose shards are damaged goes to ``unlisted``; others to ``findings``.

    Of directories that cannot be listed, there are those keys of metadata that ``exists`` returns of those it is given.

    Raises what the listing of the root raises, unless there is metadata in it.
    """
    names: list[str] = []
    level = [""]
    while level:
        below: list[str] = []
        lists = await engine.run_all([keyspace.children(prefix) for prefix in level])
        for prefix, listed in zip(level, lists, strict=True):
            children: Sequence[Listed] | Exception | None = listed
            leave_out: re.Pattern[str] | None = None
            match keyspace, listed:
                case ShardView(base=base), DamagedIndex() as error:
                    unlisted[prefix] = error
                    (children,) = await engine.run_all([base.children(prefix)])
                    leave_out = CHUNK_NAME  # names of shards, not of the chunks in them
            if isinstance(children, Exception):
                is_closed = isinstance(children, NotListable)
                known = await exists([join(prefix, name) for name in DOCUMENTS]) if is_closed else []
                if not prefix and not known:
                    raise children
                names += known
                findings.add_error(prefix, children)
                continue
            for child in children or ():
                if leave_out is None or not leave_out.fullmatch(child.name):
                    (below if child.is_directory else names).append(join(prefix, child.name))
        level = below
    return names
