"""Keys, names and documents for tables of keys."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from refshard_fs.core.columns import Row
from refshard_fs.core.zarrmeta import dumps
from refshard_fs.references.key_table import Value

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


def make_documents() -> list[dict[str, Any]]:
    array = dumps({"zarr_format": 2, "shape": [40, 5], "chunks": [1, 1], "dtype": "<i2", "order": "C"}).decode()
    inline = {f"a/{i // 5}.{i % 5}": "base64:QUJD" if i % 3 else ["u", i, 3] for i in range(200)}
    return [
        {".zgroup": '{"zarr_format":2}', "a/.zarray": array, **inline},
        {**inline, "a/.zarray": array, "a/0.0": ["later", 1, 2], "a/0.1": "later\n"},
        {f"folder{i % 7}/file-{i}.bin": [f"u{i}", i, 1] for i in range(300)},
        {f"v{i}/{name}": array if name == ".zarray" else ["u", i, 1] for i in range(90) for name in (".zarray", "3.4")},
        {f"é{i}/{name}": array if name == ".zarray" else "é\n" for i in range(90) for name in (".zarray", "3.4")},
    ]
