"""Explain in one line why only this package reads the document of a cube."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from refshard_fs.core.stats import format_count
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.cubes.fit import fit
from refshard_fs.sets.changed_set import replace_metadata
from refshard_fs.sets.compatibility import get_array_facts
from refshard_fs.sets.lazy_set import OTHERS
from refshard_fs.sets.variables import NamedSet
from refshard_fs.writing.cube_document import REMARK


def explain_document(documents: Sequence[tuple[ConcatDocument, Sequence[NamedSet]]]) -> str:
    """Return one line for users: which arrays of documents are converted or joined while they are read.

    ``documents`` has each document of the cube, with the sets that were read for it.
    """
    reasons = [
        f"chunks of {path!r} are joined while reading"
        for path in sorted({path for document, _ in documents for path in document.chunks})
    ]
    recoded: Counter[str] = Counter()
    for document, read in documents:
        shown = replace_metadata(read[0], document.metadata)
        for path in document.axes.keys() - document.chunks.keys() - {document.coordinate}:
            one = get_array_facts(path, next(part for part in (shown, *read) if path in part.variables))
            known: dict[Any, bool] = {}  # by variable, which sets with equal metadata share
            for part in read:
                if path in part.variables:
                    like = id(part.variables[path]), str(part.units.get(path))
                    if like not in known:
                        known[like] = not fit(path, one, get_array_facts(path, part)).is_same
                    recoded[path] += known[like]
    total = format_count(sum(len(read) for _, read in documents), "set")
    reasons += [
        f"{path!r} is converted while reading in {count} of {total}" for path, count in sorted(recoded.items()) if count
    ]
    if reasons:
        return f"{REMARK}: {', '.join(reasons)}. {OTHERS}"
    return f"{REMARK}; concat without lazy=True makes references that other programs read, too"
