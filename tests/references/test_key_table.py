"""A key table is what a dictionary of its members would be, whatever is asked of it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.core.columns import Row, Texts
from refshard_fs.core.keys import is_within, join, parent
from refshard_fs.core.zarrmeta import dumps
from refshard_fs.formats.kerchunk_json.source import JsonIndex, parse_document
from refshard_fs.references import binary as compiled
from refshard_fs.references import binary as pickled
from refshard_fs.references import builder, key_table
from refshard_fs.references.key_table import KeyTable, Value
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import References, ReferenceSet
from refshard_fs.references.values import decode
from refshard_fs.source.in_memory_source import digest_of
from tests.support.key_spaces import answer


@pytest.mark.parametrize("first", [0, 5_000])
def test_sizes_of_a_directory_take_no_memory_for_all_others(first: int) -> None:
    table = KeyTable.of_mapping({f"v{i}/0": "base64:" + "QUJD" * 250 for i in range(10_000)})
    tracemalloc.start()
    assert table.sizes(np.arange(first, first + 3)) == [750] * 3
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


names = st.text(st.sampled_from('ab.é"\ud800'), min_size=1, max_size=3)
keys = st.lists(st.one_of(names, st.sampled_from([".zarray", "zarr.json"])), min_size=1, max_size=3).map("/".join)
values: st.SearchStrategy[Value] = st.one_of(
    st.text(max_size=9),
    st.sampled_from(["base64:", "base64:AAAA", "base64:QUJD\xa0\xa0", "", "\ud800", "{sharding}"]),
    st.binary(max_size=5),
    st.builds(Row, st.integers(0, 3), st.integers(0, 2**63), st.none() | st.integers(0, 2**40)),
    st.fixed_dictionaries({"zarr_format": st.integers(2, 3)}),
)
members = st.dictionaries(keys, values, max_size=12)


@given(st.lists(members, max_size=4), st.booleans())
def test_a_table_is_the_mapping_of_which_the_last_member_counts(runs: list[dict[str, Value]], all_alike: bool) -> None:
    expected = {key: value for run in runs for key, value in run.items()}
    with pytest.MonkeyPatch.context() as patch:
        if all_alike:  # hashes
            patch.setattr(key_table, "hashes", lambda text, starts, stops, seed: np.zeros(len(starts), np.uint64))
            patch.setattr(key_table, "hash_of", lambda piece, seed: 0)
        table = KeyTable.of([KeyTable.of_mapping({}), *map(KeyTable.of_mapping, runs)])
        assert dict(table.items()) == expected == dict(table)
        assert sorted(table) == sorted(expected)
        assert all(table[key] == value for key, value in expected.items())
        assert all(key + "x" not in table or key + "x" in expected for key in expected)
        table.check()
        gone = list(expected)[::2]
        assert dict(table.without_rows(table.rows_of(gone))) == {
            key: value for key, value in expected.items() if key not in gone
        }
        assert dict(KeyTable.of([table])) == expected


@given(members)
def test_rows_are_found_by_name_and_by_directory(found: dict[str, Value]) -> None:
    table = KeyTable.of([KeyTable.of_mapping(found)])
    for name in ((".zarray", "zarr.json"), ("a",), ("a", ".zarray")):
        assert {table.key(row) for row in table.keys_in_rows.named(name)} == {
            key for key in found if parent(key)[1] in name
        }
    below: dict[str, set[str]] = {}
    for key in found:
        below.setdefault(parent(key)[0], set()).add(key)
    assert {path: {table.key(row) for row in rows} for path, rows in table.keys_in_rows.by_directory().items()} == below


@given(members.filter(lambda found: "\ud800" not in found.values()))  # which are not in UTF-8
def test_a_key_space_lists_what_there_is(found: dict[str, Value]) -> None:
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


@given(members)
def test_tables_survive_the_compiled_form_and_pickles(found: dict[str, Value]) -> None:
    refs = ReferenceSet(Texts.of([b"u"]), {}, KeyTable.of([KeyTable.of_mapping(found)]))
    try:
        packed, shrunk = b"".join(compiled.pack(refs)), pickled.shrink(refs)
    except ValueError:  # half a surrogate pair in an object
        return
    for again in (compiled.unpack(memoryview(packed)), pickled.swell(shrunk)):
        assert dict(again.keys) == found
    assert digest_of(pickled.swell(shrunk)) == digest_of(refs)


def test_a_damaged_compiled_form_is_an_error() -> None:
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


def documents() -> list[dict[str, Any]]:
    array = dumps({"zarr_format": 2, "shape": [40, 5], "chunks": [1, 1], "dtype": "<i2", "order": "C"}).decode()
    inline = {f"a/{i // 5}.{i % 5}": "base64:QUJD" if i % 3 else ["u", i, 3] for i in range(200)}
    return [
        {".zgroup": '{"zarr_format":2}', "a/.zarray": array, **inline},
        {**inline, "a/.zarray": array, "a/0.0": ["later", 1, 2], "a/0.1": "later\n"},
        {f"folder{i % 7}/file-{i}.bin": [f"u{i}", i, 1] for i in range(300)},
        {f"v{i}/{name}": array if name == ".zarray" else ["u", i, 1] for i in range(90) for name in (".zarray", "3.4")},
        {f"é{i}/{name}": array if name == ".zarray" else "é\n" for i in range(90) for name in (".zarray", "3.4")},
    ]


@pytest.mark.parametrize("document", documents(), ids=range(5))
def test_sets_are_the_same_in_columns_and_by_key(document: dict[str, Any]) -> None:
    found: list[ReferenceSet] = []
    for small in (10**9, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(builder, "SMALL", small)
            found += [parse_document(document, "refs", {}), JsonIndex("refs.json").decode(dumps(document))]
    assert [dict(References(refs)) for refs in found] == [document] * 4
    assert [len(refs) for refs in found] == [len(document)] * 4
    listed = []
    for refs in found:
        keyspace = FlatKeySpace(refs, str, "refs.json")
        directories = {"", *(parent(key)[0] for key in document)}
        listed.append({path: list(answer(keyspace.children(path))) for path in directories})
        assert keyspace.metadata_lacks((b"sharding",))
    assert listed[0] == listed[1] == listed[2] == listed[3]


@pytest.mark.parametrize("kind", ["odd keys", "inline", "URLs", "arrays"])
def test_a_large_set_keeps_no_object_for_each_member(kind: str) -> None:
    count = 20_000
    shape = [10 if kind == "arrays" else count]
    array = dumps({"zarr_format": 2, "shape": shape, "chunks": [1], "dtype": "<i2", "order": "C"}).decode()
    refs: dict[str, Any] = {".zgroup": '{"zarr_format":2}'}
    match kind:
        case "odd keys":
            refs |= {f"folder/file-{i}.bin": ["u", i, 1] for i in range(count)}
        case "inline":
            refs |= {"a/.zarray": array} | {f"a/{i}": "base64:QUJD" for i in range(count)}
        case "URLs":
            refs |= {"a/.zarray": array} | {f"a/{i}": [f"file-{i}.nc", 1, 2] for i in range(count)}
        case "arrays":
            refs |= {
                f"v{i}/{name}": array if name == ".zarray" else ["u", i, 1]
                for i in range(count)
                for name in (".zarray", "0")
            }
    data = dumps(refs)
    JsonIndex("refs.json").decode(data)  # what is made once in a process
    tracemalloc.start()
    found = JsonIndex("refs.json").decode(data)
    kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "<unknown>")])
    tracemalloc.stop()
    blocks = sum(statistic.count for statistic in kept.statistics("filename"))
    assert len(found) == len(refs)
    assert blocks < (3 * count if kind == "arrays" else count // 10)


def test_a_damaged_table_whose_keys_have_nuls_of_their_own_is_refused() -> None:
    table = KeyTable.of_mapping({"a/0": "x", "a/1": "y"})
    table.check()
    table.spelled = bytes(table.spelled).replace(b"a/0", b"a\0000")
    with pytest.raises(ValueError, match="do not fit one another"):
        table.check()
