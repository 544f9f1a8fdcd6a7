"""The listings of a `FlatKeySpace` agree with its keys."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given

from refshard_fs.core.columns import Row, Texts
from refshard_fs.core.keys import is_within, join, parent
from refshard_fs.references.key_table import KeyTable, Value
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import decode
from tests.support.key_spaces import answer
from tests.support.key_tables import members


@pytest.mark.parametrize("first", [0, 5_000])
def test_sizes_of_few_rows_take_little_memory(first: int) -> None:
    table = KeyTable.of_mapping({f"v{i}/0": "base64:" + "QUJD" * 250 for i in range(10_000)})
    tracemalloc.start()
    assert table.get_sizes(np.arange(first, first + 3)) == [750] * 3
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@given(members.filter(lambda found: "\ud800" not in found.values()))  # UTF-8 cannot encode it
def test_listings_agree_with_keys(found: dict[str, Value]) -> None:
    keyspace = FlatKeySpace(ReferenceSet(Texts.of([b"u%d" % i for i in range(4)]), {}, found), str, "refs.json")
    documents = [value for key, value in found.items() if parent(key)[1] in (".zarray", "zarr.json")]
    assert keyspace.holds_all_metadata == (Row not in map(type, documents))
    if keyspace.metadata_lacks((b"sharding",)):
        assert all(type(value) is str and "sharding" not in value for value in documents)
    for prefix in {"", *found, *(parent(key)[0] for key in found), "missing"}:
        below = {key[len(prefix) + 1 if prefix else 0 :] for key in found if is_within(key, prefix) and key != prefix}
        listed = answer(keyspace.children(prefix))
        assert answer(keyspace.is_directory(prefix)) == (not prefix or bool(below))
        if prefix and not below:
            assert listed is None
        elif type(listed) is list:
            assert [file.name for file in listed] == sorted({name.partition("/")[0] for name in below})
            assert {file.name for file in listed if file.is_directory} == {
                name.partition("/")[0] for name in below if "/" in name
            }
            for file in listed:
                if not file.is_directory:
                    assert file.size == size_of(found[join(prefix, file.name)])


def size_of(value: Value) -> int | None:
    return value.length if isinstance(value, Row) else len(decode(value))
