"""Parsing in blocks has the result of a JSON reader, wherever blocks end and however the text is spelled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refshard_fs.core.keys import normalise
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_json import blocks as json_blocks
from refshard_fs.formats.kerchunk_json.source import parse_document
from refshard_fs.references import builder
from refshard_fs.references.reference_set import References, ReferenceSet
from tests.support.json_blocks import ARRAY, keys, read, read_entries

ARRAY |= {"order": "C", "filters": None}
ARRAY_3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [40, 6],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes"}],
    "fill_value": 0,
}


@pytest.fixture(autouse=True, params=[(0, 512), (256, 512), (0, 2)], ids=str)
def small_blocks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Use small blocks, so that many of them end within a value.

    With each parameter, arrays become columns at another time: at once, never, or after their metadata.
    """
    small, documents = request.param
    monkeypatch.setattr(builder, "SMALL", small)
    monkeypatch.setattr(builder, "MANY_DOCUMENTS", documents)
    monkeypatch.setattr(builder, "MANY_MEMBERS", 16)
    monkeypatch.setattr(json_blocks, "BLOCK", 512)
    monkeypatch.setattr(json_blocks, "PART", 128)
    monkeypatch.setattr(builder, "FEW", 2)
    monkeypatch.setattr(builder, "BATCH", 8)


def make_references(count: int = 120) -> dict[str, Any]:
    refs: dict[str, Any] = {".zgroup": '{"zarr_format":2}', "a/.zarray": json.dumps(ARRAY), "a/.zattrs": "{}"}
    refs |= {f"a/{i // 3}.{i % 3}": [f"s3://bucket/file-{i // 7}.nc", i * 10007, 90 + i] for i in range(count)}
    return refs


def count_in_columns(refs: ReferenceSet) -> int:
    return sum(map(len, refs.tables.values()))


@pytest.mark.parametrize(
    "spelling",
    [
        {"separators": (",", ":")},
        {},
        {"indent": 2},
        {"indent": 0, "separators": (" ,", " :\t")},
        {"separators": (", ", ":")},
    ],
)
@pytest.mark.parametrize(("slashes", "version"), [(False, 1), (True, 0)])
def test_documents_with_various_white_space_are_read(spelling: dict[str, Any], slashes: bool, version: int) -> None:
    refs = make_references()
    text = json.dumps({"version": 1, "templates": {}, "refs": refs} if version else refs, **spelling)
    found = read(text.replace("/", "\\/") if slashes else text)
    assert read_entries(found) == refs
    assert count_in_columns(found) == 120


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_document_is_parsed_in_pieces_of_various_lengths(piece: int) -> None:
    refs = {**make_references(), "text é": 'a"],"b', "a/.zattrs": '{"é":[1,2],"x":"y"}'}
    assert read_entries(read(json.dumps({"version": 1, "refs": refs}, ensure_ascii=False), piece)) == refs


@pytest.mark.parametrize("array", [ARRAY, {**ARRAY, "dimension_separator": "/"}])
@pytest.mark.parametrize("path", ["", "a", "deep/er/a"])
def test_chunk_keys_with_either_separator_become_columns(array: dict[str, Any], path: str) -> None:
    stem = path + "/" if path else ""
    separator = array.get("dimension_separator", ".")
    refs: dict[str, Any] = {stem + ".zarray": json.dumps(array)}
    refs |= {f"{stem}{i // 3}{separator}{i % 3}": ["u", i, i + 1] for i in range(120)}
    found = read(json.dumps(refs, separators=(",", ":")))
    assert read_entries(found) == refs
    assert count_in_columns(found) == 120


@pytest.mark.parametrize("first", [True, False])
def test_keys_become_columns_before_and_after_their_metadata(first: bool) -> None:
    refs: dict[str, Any] = {f"a/c/{i // 3}/{i % 3}": ["u", i, i + 1] for i in range(120)}
    refs = {"a/zarr.json": ARRAY_3, **refs} if first else {**refs, "a/zarr.json": ARRAY_3}
    found = read(json.dumps(refs, separators=(",", ":")))
    assert read_entries(found) == refs
    assert count_in_columns(found) == 120


def test_interleaved_and_nested_arrays_are_separated() -> None:
    refs: dict[str, Any] = {f"{p}/.zarray": json.dumps(ARRAY) for p in ("a", "a/b", "ab", "z")}
    for i in range(120):
        refs |= {f"{p}/{i // 3}.{i % 3}": [f"u-{p}", i, 1] for p in ("a", "a/b", "ab")}
    found = read(json.dumps(refs, separators=(",", ":")))
    assert read_entries(found) == refs
    assert {p: len(t) for p, t in found.tables.items()} == {"a": 120, "a/b": 120, "ab": 120, "z": 0}


def test_last_value_of_a_repeated_key_is_used() -> None:
    body = ",".join(f'"a/{i}.0":["u",{i},1]' for i in range(40))
    head = f'"a/.zarray":{json.dumps(ARRAY)}'
    later = ",".join(f'"a/{i}.0":["v",{i},2]' for i in range(0, 40, 2))
    data = ",".join(f'"a/{i}.0":"data"' for i in range(0, 40, 3))
    again = '"a/6.0":["w",6,6],"a/7.0":"x"'
    for order in ([head, body, later, data, again], [body, later, data, again, head]):
        text = "{" + ",".join(order) + "}"
        assert read_entries(read(text)) == json.loads(text)


def test_array_with_two_metadata_documents_has_the_last_grid() -> None:
    body = ",".join(f'"a/{i // 3}.{i % 3}":["u",{i},1]' for i in range(60))
    small = json.dumps({**ARRAY, "shape": [40, 2]})
    text = f'{{"a/.zarray":{json.dumps(ARRAY)},{body},"a/.zarray":{small}}}'
    found = read(text)
    assert read_entries(found) == json.loads(text)
    assert len(found.tables["a"]) == 20


def test_each_url_is_stored_once_in_the_order_of_the_set() -> None:
    refs: dict[str, Any] = {f"k{i}": [[None, "", "u", "\0", "v" * 700][i % 5], i, 1] for i in range(200)}
    found = read(json.dumps(refs))
    assert read_entries(found) == refs
    assert list(found.urls) == [None, "", "u", "\0", "v" * 700]


def test_keys_that_name_no_chunk_are_kept_beside_columns() -> None:
    odd = ["a/00.0", "a/0", "a/0.0.0", "a/99.0", "a/0.-1", "a/x.y", "b/0.0", "a.0", "a/0.0/x", "a/1.", "a/.1", "a/1..1"]
    refs = {**make_references(6), **{key: ["odd", 1, 2] for key in odd}}
    found = read(json.dumps(refs, separators=(",", ":")))
    assert read_entries(found) == refs
    assert {key for key in found.side if not key.startswith((".z", "a/.z"))} == set(odd)


def test_whole_targets_ranges_and_data_of_an_array_are_read() -> None:
    refs = make_references()
    refs |= {f"a/{i}.1": [f"file-{i}"] for i in range(20)}
    refs |= {f"a/{i}.2": [None, i, 5] for i in range(20)}
    refs |= {"a/30.0": [None], "a/31.0": "base64:AAAA", "a/32.0": {"x": [1, 2], "y": "z"}}
    assert read_entries(read(json.dumps({"version": 1, "refs": refs}))) == refs
    assert read_entries(parse_document(refs, "refs", {})) == refs


def test_templates_are_expanded_before_or_after_the_references() -> None:
    refs = make_references()
    short = {k: ["{{u}}" + v[0][11:], *v[1:]] if isinstance(v, list) else v for k, v in refs.items()}
    short["b"] = ["{{f(c='x')}}"]
    templates = {"u": "s3://bucket", "f": "s3://{{c}}.nc"}
    gen = [{"key": "g/{{i}}", "url": "{{u}}/{{i}}", "offset": "{{i}}", "length": "7", "dimensions": {"i": {"stop": 3}}}]
    parts = [
        f'"version":1,"refs":{json.dumps(short)}',
        f'"templates":{json.dumps(templates)}',
        f'"gen":{json.dumps(gen)}',
    ]
    expected = {**refs, "b": ["s3://x.nc"], **{f"g/{i}": [f"s3://bucket/{i}", i, 7] for i in range(3)}}
    for order in (parts, parts[::-1], [parts[1], parts[0], parts[2]]):
        assert read_entries(read("{" + ",".join(order) + "}")) == expected


def test_many_members_named_refs_are_parsed_in_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = b'"x": [1], "refs": {"y": 1}, ' * 2000
    data = b'{"a": {' + parts + b'"z": 1}, "b": "c", "version": 1, "refs": {"k": "v"}}'
    decode, sizes = json_blocks.msgspec.json.decode, []

    def count(text: bytes) -> Any:
        sizes.append(len(text))
        return decode(text)

    monkeypatch.setattr(json_blocks.msgspec.json, "decode", count)
    assert dict(References(read(data))) == {"k": "v"}
    assert sum(sizes) < 100 * len(data)


def test_nan_surrogates_and_control_characters_are_accepted() -> None:
    text = '{"a/.zarray":{"fill_value":NaN,"x":[-Infinity]},"b":"\\ud800","c":"tab\tnewline\n","a/0.0":["u",1,2]}'
    found = read_entries(read("\ufeff" + text))
    assert found["b"] == "\ud800"
    assert found["c"] == "tab\tnewline\n"
    assert str(found["a/.zarray"]["fill_value"]) == "nan"
    assert found["a/0.0"] == ["u", 1, 2]


@pytest.mark.parametrize(
    "text",
    [
        '{"a":["u",1,2]',
        '{"a":["u",1,2],}',
        '{"a":["u",1,2]}}',
        '{"a":["u",1,2]} x',
        '{"a":["u",01,2]}',
        '{"a":["u",1 1,2]}',
        '{"a":["u",1,2] "b":["u",1,2]}',
        '{"a" ["u",1,2]}',
        '{,"a":["u",1,2]}',
        '["u",1,2]',
        '{"a":["u",1,2],"b',
        '{"a":["\\x",1,2]}',
        "",
        "   ",
        "{",
        '{"version":1,"refs":{"a":["u",1,2]}',
        '{"version":1,"refs":{"a":["u",1,2]},"templates":{"u"}}',
        b'{"a":["\xff",1,2]}',
        b'{"\xff":["u",1,2]}',
        b'{"a":["\xed\xa0\x80",1,2]}',
    ],
)
@pytest.mark.parametrize("many", [0, 60])
def test_invalid_json_is_refused(text: str | bytes, many: int) -> None:
    filler = "".join(f'"k{i}":["u",{i},1],' for i in range(many)).encode()
    data = text if isinstance(text, bytes) else text.encode()
    for broken in (
        data.replace(b'"a"', filler + b'"a"', 1),
        data.replace(b'"a":', b'"a":["u",1,2],' + filler + b'"z":', 1),
    ):
        if many and broken == data:
            continue
        with pytest.raises(ManifestError, match=r"refs\.json"):
            read(broken)


@pytest.mark.parametrize("before", ["\ufeff\ufeff", " \ufeff", "\ufeff \ufeff"])
@pytest.mark.parametrize("piece", [1, 514, 1 << 20])
def test_byte_order_mark_is_accepted_only_at_the_start(before: str, piece: int) -> None:
    text = json.dumps(make_references())
    assert read_entries(read("\ufeff" + text, piece)) == make_references()
    with pytest.raises(ManifestError, match="at its beginning"):
        read(before + text, piece)


@pytest.mark.parametrize("value", ["1", "-1", "1.0", "true", "null", '"1"', "[1]", "1e3"])
def test_invalid_offset_is_refused_with_its_key(value: str) -> None:
    body = ",".join(f'"k{i}":["u",{i},1]' for i in range(60))
    text = f'{{{body},"a/0":["u",{value},1]}}'
    if value == "1":
        assert read_entries(read(text)) == json.loads(text)
        return
    with pytest.raises(ManifestError, match=r"'a/0' of refs\.json"):
        read(text)


urls = st.one_of(
    st.sampled_from(["u", "s3://bucket/file.nc", "s3://bucket/file.nd", "a],", "b],[", "{", '"', "é" * 9, "\\"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{"), max_size=20),
)
counts = st.one_of(st.integers(0, 10**9), st.integers(0, 2**64 - 2))
values = st.one_of(
    st.tuples(urls, counts, counts).map(list),
    st.tuples(urls, counts, counts).map(list),
    st.tuples(urls).map(list),
    st.tuples(st.none(), counts, counts).map(list),
    st.sampled_from(["data", 'a"],"b', "base64:AA==", "],", ""]),
    st.dictionaries(st.sampled_from(["shape", "x"]), st.lists(st.integers(), max_size=2), max_size=2),
)
members = st.lists(st.tuples(keys, values), max_size=60)
spellings = st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 1}])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members, spellings, st.booleans(), st.booleans(), st.integers(0, 60), st.sampled_from([13, 301, 1 << 20]))
def test_random_documents_are_read_as_by_the_json_module(
    items: list[tuple[str, Any]], spelling: Any, ascii_only: bool, wrap: bool, at: int, piece: int
) -> None:
    # Members are spelled one by one, because keys may be repeated. Metadata are inserted anywhere.
    if not wrap:
        items = [(k, v) for k, v in items if k not in ("version", "refs", "templates")]
    metadata: list[tuple[str, Any]] = [("a/.zarray", json.dumps(ARRAY)), ("b/zarr.json", ARRAY_3)]
    items = items[:at] + metadata + items[at:]
    colon = spelling.get("separators", (", ", ": "))
    spelled = [
        json.dumps(k, ensure_ascii=ascii_only) + colon[1] + json.dumps(v, ensure_ascii=ascii_only, **spelling)
        for k, v in items
    ]
    body = "{" + colon[0].join(spelled) + "}"
    text = '{"version":1,"refs":' + body + "}" if wrap else body
    assert read_entries(read(text, piece)) == json.loads(body)


@given(st.binary(max_size=40), st.integers(0, 600), st.integers(0, 3))
def test_damaged_document_is_an_error_or_equals_json(noise: bytes, at: int, cut: int) -> None:
    text = json.dumps({f"k{i}": ["s3://b/u", i, 1] for i in range(30)}, separators=(",", ":")).encode()
    damaged = text[:at] + noise + text[at + cut :]
    try:
        spelled = json.loads(damaged.decode("utf-8-sig"), strict=False)
    except ValueError:
        with pytest.raises(ManifestError):
            read(damaged)
        return
    try:
        found = read_entries(read(damaged))
    except ManifestError:
        return  # the text is valid JSON, but not a reference set
    assert found == {normalise(key): value for key, value in spelled.items()}


@pytest.mark.parametrize("end", ["}", "} ", ',"b":"text"}'])
def test_lone_surrogates_are_accepted_in_values(end: str) -> None:
    for text in ('{"a":"\\ud800"' + end, '{"x":["u",1,2],"a":"\\ud800"' + end):
        assert read_entries(read(text))["a"] == "\ud800"
