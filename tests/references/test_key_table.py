"""A `KeyTable` has the same members as a dict."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.core.columns import Texts
from refshard_fs.core.keys import parent
from refshard_fs.references import binary as compiled
from refshard_fs.references import binary as pickled
from refshard_fs.references import key_table
from refshard_fs.references.key_table import KeyTable, Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.source.in_memory_source import compute_digest
from tests.support.key_tables import members


@given(st.lists(members, max_size=4), st.booleans())
def test_table_keeps_the_last_member_of_each_key(runs: list[dict[str, Value]], all_alike: bool) -> None:
    expected = {key: value for run in runs for key, value in run.items()}
    with pytest.MonkeyPatch.context() as patch:
        if all_alike:  # all keys get the same hash
            patch.setattr(key_table, "compute_hashes", lambda text, starts, *_: np.zeros(len(starts), np.uint64))
            patch.setattr(key_table, "compute_hash", lambda piece, seed: 0)
        table = KeyTable.of([KeyTable.of_mapping({}), *map(KeyTable.of_mapping, runs)])
        assert dict(table.items()) == expected == dict(table)
        assert sorted(table) == sorted(expected)
        assert all(table[key] == value for key, value in expected.items())
        assert all(key + "x" not in table or key + "x" in expected for key in expected)
        table.check()
        gone = list(expected)[::2]
        assert dict(table.drop_rows(table.find_rows(gone))) == {
            key: value for key, value in expected.items() if key not in gone
        }
        assert dict(KeyTable.of([table])) == expected


@given(members)
def test_rows_are_found_by_name_and_by_directory(found: dict[str, Value]) -> None:
    table = KeyTable.of([KeyTable.of_mapping(found)])
    for name in ((".zarray", "zarr.json"), ("a",), ("a", ".zarray")):
        assert {table.get_key(row) for row in table.keys_in_rows.find_named(name)} == {
            key for key in found if parent(key)[1] in name
        }
    below: dict[str, set[str]] = {}
    for key in found:
        below.setdefault(parent(key)[0], set()).add(key)
    assert {
        path: {table.get_key(row) for row in rows} for path, rows in table.keys_in_rows.group_by_directory().items()
    } == below


@given(members)
def test_tables_survive_binary_form_and_pickles(found: dict[str, Value]) -> None:
    refs = ReferenceSet(Texts.of([b"u"]), {}, KeyTable.of([KeyTable.of_mapping(found)]))
    try:
        packed, shrunk = b"".join(compiled.pack(refs)), pickled.pack_compressed(refs)
    except ValueError:  # an object has a lone surrogate
        return
    for again in (compiled.unpack(memoryview(packed)), pickled.unpack_compressed(shrunk)):
        assert dict(again.keys) == found
    assert compute_digest(pickled.unpack_compressed(shrunk)) == compute_digest(refs)


def test_damaged_packed_table_raises_only_decoding_errors() -> None:
    refs = ReferenceSet(Texts.of([b"u"]), {}, KeyTable.of_mapping({f"k{i}": "text" * 9 for i in range(50)}))
    packed = bytearray(b"".join(compiled.pack(refs)))
    for at in range(0, len(packed), 7):
        damaged = packed.copy()
        damaged[at] ^= 0xFF
        try:
            found = compiled.unpack(memoryview(bytes(damaged)))
            list(found.keys.items())
        except (ValueError, msgspec.MsgspecError):
            continue


def test_damaged_table_whose_keys_have_nuls_is_refused() -> None:
    table = KeyTable.of_mapping({"a/0": "x", "a/1": "y"})
    table.check()
    table.joined_keys = bytes(table.joined_keys).replace(b"a/0", b"a\0000")
    with pytest.raises(ValueError, match="contradict each other"):
        table.check()
