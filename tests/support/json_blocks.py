"""Read reference sets in small blocks, and list the content of their columns."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from refshard_fs.formats.kerchunk_json.source import JsonIndex
from refshard_fs.references.reference_set import References, ReferenceSet

ARRAY = {"zarr_format": 2, "shape": [40, 6], "chunks": [1, 2], "dtype": "<f4", "compressor": None, "fill_value": 0}


def read(text: str | bytes, piece: int = 1 << 20) -> ReferenceSet:
    data = text if isinstance(text, bytes) else text.encode()
    decoder = JsonIndex("refs.json").make_decoder()
    for start in range(0, len(data), piece):
        decoder.feed(data[start : start + piece])
    return decoder.finish()


def read_entries(refs: ReferenceSet) -> dict[str, Any]:
    return dict(References(refs).items())


keys = st.one_of(
    st.builds("a/{}.{}".format, st.integers(0, 41), st.integers(0, 3)),
    st.builds("b/c/{}/{}".format, st.integers(0, 41), st.integers(0, 3)),
    st.sampled_from(["a/.zattrs", "x", "a/b", "ключ", 'quo"te', "a/0.0 ", "version", "refs", "templates"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/\\."), min_size=1, max_size=5),
)
