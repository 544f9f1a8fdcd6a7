"""Append to a set of references: the keys that differ in the longer set become edits of the stored set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Row
from refshard_fs.core.edits import REMOVED, Edit
from refshard_fs.core.keys import join
from refshard_fs.core.model import Inline, Span
from refshard_fs.errors import ManifestError, NoSuchSource
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import decode
from refshard_fs.sets.changed_set import convert_to_version_3
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.sets.common_units import convert_to_common_units
from refshard_fs.sets.concatenation import concatenate
from refshard_fs.sets.coordinates import OutOfOrder
from refshard_fs.sets.digests import add_digests
from refshard_fs.sets.hold_texts import hold_texts
from refshard_fs.sets.new_elements import AppendRules, find_new_elements
from refshard_fs.sets.opened_set import FileSystemLike
from refshard_fs.sets.sources import read_sets, report_skipped
from refshard_fs.sets.stacking import stack_like
from refshard_fs.sets.stored_coordinates import add_coordinates
from refshard_fs.sets.trim import trim
from refshard_fs.sets.variables import NamedSet, VariableReader


class GrownReferences(NamedTuple):
    """A stored set of references (``before``), and the same set with a new set at its end (``whole``)."""

    before: ReferenceSet
    whole: ReferenceSet
    joined: frozenset[str]  # paths of the arrays that grow
    added: int
    holds_pins: bool
    remark: str  # a warning about the servers that the new set names

    @classmethod
    def of(
        cls,
        target: FileSystemLike,
        url: str,
        fo: Any,
        rules: AppendRules,
        options: Mapping[str, Any],
        *,
        holds_pins: bool,
    ) -> GrownReferences | None:
        """Append ``fo`` to the set of ``target``, at ``url``, in memory; None if it has nothing new or is skipped."""
        dim = rules.dim
        before = collect_references(target)
        if not len(before):
            raise make_no_target_error(url)
        name = f"the set at {url}"
        stored = NamedSet(name, before, VariableReader().read(before, name), fo=target)
        old = target.source.run("", lambda: add_coordinates(stored))
        failed: dict[int, Exception] | None = {} if rules.skips_unreadable else None
        found = read_sets([fo], options, lambda _: None, failed)
        if failed:
            report_skipped(failed, any_left=True)
            return None
        (new,) = found
        new = msgspec.structs.replace(new, name=new.name.replace("set 0", "the set to append", 1))
        new = stack_like(new if "zarr.json" not in before.side else convert_to_version_3(new), dim, old)
        if new.refs.pins is not None and not holds_pins:
            raise ManifestError(
                f"{new.name} has pinned versions, and append does not write pins to {url}: append "
                "refshard_fs.rebase(set, {}).unpinned()"
            )
        old, new = hold_texts(convert_to_common_units([old, new], dim).parts, [dim])
        try:
            elements = find_new_elements(old, new, rules)
        except OutOfOrder as e:
            if failed is None:
                raise
            report_skipped({0: e}, any_left=True)
            return None
        if elements is None:
            return None
        if not elements.old:
            raise ManifestError(
                f"{new.name} would replace the beginning of {old.name}: append replaces only the end. Make the set anew"
            )
        pieces = [trim(old, dim, 0, elements.old), trim(new, dim, elements.start, elements.stop)]
        whole = concatenate(add_digests(pieces, [dim], rules.same), dim, rules.same)
        added = whole.find_length(dim) - old.find_length(dim)
        return cls(before, whole.refs, frozenset(old.find_axes(dim)), added, holds_pins, new.refs.origins.remark)

    def find_edits(self) -> Iterator[tuple[str, Edit]]:
        """Yield each key that changes, with its new content."""
        before, whole, first_new = self.before, self.whole, len(self.before.urls)  # URLs of the new set come last
        for path, table in whole.tables.items():
            known = before.tables.get(path)
            if known is not None and path in self.joined:
                yield from _list_removals(path, known, whole, before)
            part = table.make_part()
            is_new = part.ranges.targets >= (0 if known is None else first_new)
            for number in part.numbers[is_new].tolist():
                row = table.get_row(number)
                if row is not None:
                    key = join(path, table.grid.tail(number))
                    yield key, _parse_span(whole, row, key)
        for key, value in whole.side.items():
            if key == ".zmetadata" and not self.holds_pins:
                continue  # a commit to a parquet set makes this document
            if type(value) is Row:
                if value.target >= first_new:
                    yield key, _parse_span(whole, value, key)
            elif not _is_same(before.side.get(key), value):
                yield key, Inline(decode(value))


def make_no_target_error(url: str) -> NoSuchSource:
    """Return the error that there is no set at ``url`` to which something can be appended."""
    return NoSuchSource(f"there is no set at {url} to append to: concat makes one, and create=True makes a cube")


def _list_removals(
    path: str, known: ChunkTable, whole: ReferenceSet, before: ReferenceSet
) -> Iterator[tuple[str, Edit]]:
    """Yield removals of an array's old chunks, if one inline chunk now holds its values, as for a coordinate."""
    if len(whole.tables[path]) and whole.tables[path].grid.size >= known.grid.size:
        return  # references stay at their keys
    keys = {join(path, known.grid.tail(number)) for number in known.list_present().tolist()}
    keys |= {key for key in before.side if key.startswith(path + "/") and not zarrmeta.is_metadata(key)}
    yield from ((key, REMOVED) for key in sorted(keys) if key not in whole.side)


def _parse_span(refs: ReferenceSet, row: Row, key: str) -> Span:
    url = refs.urls[row.target]
    if url is None:
        raise ManifestError(
            f"{key!r} is a reference without a URL, which cannot be appended: open the set as RefShardFileSystem(set, "
            "target=URL), and append this filesystem"
        )
    pin = None if refs.pins is None else refs.pins.get_pin(row.target)
    stop = None if row.length is None else row.offset + row.length
    return Span(url, row.offset, stop, pin=pin, origin=refs.origins.of(url))


def _is_same(before: Value | None, now: Value) -> bool:
    if before is None or type(before) is Row or type(now) is Row:
        return False
    if isinstance(before, dict) and isinstance(now, dict):
        return before == now
    return decode(before) == decode(now)
