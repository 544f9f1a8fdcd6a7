"""A set is equal with chunks in columns and by key, and it has no Python object for each reference."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from refshard_fs.core.keys import parent
from refshard_fs.core.zarrmeta import dumps
from refshard_fs.formats.kerchunk_json.source import JsonIndex, parse_document
from refshard_fs.references import builder
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import References, ReferenceSet
from tests.support.key_spaces import answer
from tests.support.key_tables import make_documents


@pytest.mark.parametrize("document", make_documents(), ids=range(5))
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
def test_large_set_keeps_few_objects_for_its_members(kind: str) -> None:
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
    JsonIndex("refs.json").decode(data)  # make the caches of the process before the measurement
    tracemalloc.start()
    found = JsonIndex("refs.json").decode(data)
    kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "<unknown>")])
    tracemalloc.stop()
    blocks = sum(statistic.count for statistic in kept.statistics("filename"))
    assert len(found) == len(refs)
    assert blocks < (3 * count if kind == "arrays" else count // 10)
