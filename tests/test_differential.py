"""Random reference sets, read by this package and by fsspec, and saved as JSON, parquet and chunk manifests.

Both have the same keys and the same bytes. Each error of fsspec has a predicate here, whose docstring describes it.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refshard_fs import ManifestError, ReferenceNotReachable, RefShardFileSystem
from refshard_fs.source.source import INDEXES
from tests.support.threads import wait_for_writes

pytest.importorskip("pyarrow")

SIZE = 300
CONTENT = {name: random.Random(name).randbytes(SIZE) for name in ("one", "two", "three")}
DEFAULT = "one"  # the value of target=
NAMES = ("a", "g/b", "g/deep/c", "d")
METADATA = (".zarray", ".zgroup", ".zattrs", "zarr.json")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    for name, data in CONTENT.items():
        (folder / name).write_bytes(data)
    return folder


class Spelled(NamedTuple):
    """One value of a set: its text in JSON (DIR stands for the targets' folder), its bytes, and its kind."""

    value: Any
    data: bytes | None  # None: the key exists, but its bytes cannot be read
    kind: str


class Set(NamedTuple):
    """A reference set: its members, and the keys and values that they describe."""

    document: dict[str, Any]
    values: dict[str, Spelled]

    def make_document(self, folder: Path) -> dict[str, Any]:
        text = json.dumps(self.document)
        found: dict[str, Any] = json.loads(text.replace("DIR", str(folder)))
        return found


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
    lambda text: not text.startswith("base64:") and "DIR" not in text
)
ranges = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: (min(pair), max(pair)))


@st.composite
def values(draw: st.DrawFn, templates: Mapping[str, str]) -> Spelled:
    kinds = ["text", "base64", "whole", "range", "default", "past the end"]
    kinds += ["template", "call", "nested template"] if templates else []
    kind = draw(st.sampled_from(kinds))
    name = draw(st.sampled_from(sorted(CONTENT)))
    start, stop = draw(ranges)
    url = draw(st.sampled_from([f"DIR/{name}", f"file://DIR/{name}"]))
    match kind:
        case "text":
            text = draw(texts)
            return Spelled(text, text.encode(), kind)
        case "base64":
            data = draw(st.binary(max_size=20))
            return Spelled("base64:" + base64.b64encode(data).decode(), data, kind)
        case "whole":
            return Spelled([url], CONTENT[name], kind)
        case "default":
            return Spelled([None, start, stop - start], CONTENT[DEFAULT][start:stop], kind)
        case "past the end":
            return Spelled([url, start, SIZE - start + draw(st.integers(1, 9))], None, kind)
        case "template":
            url = "{{u}}/" + name
        case "call":
            url = f"{{{{f(c='{name}')}}}}"
        case "nested template":
            url = f"{{{{n(c='{name}')}}}}"
    return Spelled([url, start, stop - start], CONTENT[name][start:stop], kind)


@st.composite
def draw_arrays(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[str]]:
    """Return the name of a metadata document, its content, and the keys of all chunks, relative to the array."""
    counts = draw(st.lists(st.integers(1, 4), max_size=3))
    shape, chunks = [2 * n - draw(st.integers(0, 1)) for n in counts], [2] * len(counts)
    separator = draw(st.sampled_from("./"))
    coords = [list(map(str, place)) for place in itertools.product(*map(range, counts))]
    version = draw(st.sampled_from([2, 3]))
    if version == 2:
        doc: dict[str, Any] = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<i2", "order": "C"}
        doc |= {"compressor": None, "filters": None, "fill_value": 0}
        if separator == "/" or draw(st.booleans()):
            doc["dimension_separator"] = separator
        return ".zarray", doc, [separator.join(c) or "0" for c in coords]
    encoding = draw(st.sampled_from(["default", "v2"]))
    doc = {"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "int16", "fill_value": 0}
    doc["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    doc["chunk_key_encoding"] = {"name": encoding, "configuration": {"separator": separator}}
    doc |= {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {}}
    return "zarr.json", doc, [separator.join(["c"] * (encoding == "default") + c) or "0" for c in coords]


@st.composite
def draw_sets(draw: st.DrawFn) -> Set:
    version = draw(st.sampled_from([0, 1]))
    templates = {"u": "DIR", "f": "DIR/{{c}}", "n": "{{u}}/{{c}}"} if version and draw(st.booleans()) else {}
    found: dict[str, Spelled] = {}
    paths = [""] if draw(st.integers(0, 4)) == 0 else draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    for path in paths:
        stem = path + "/" if path else ""
        name, doc, tails = draw(draw_arrays())
        found[stem + name] = _draw_document(draw, doc)
        if name == ".zarray" and draw(st.booleans()):
            found[stem + ".zattrs"] = _draw_document(
                draw, {"x": [1, None, "é"], "y": draw(st.integers(-(2**63), 2**64 - 1))}
            )
        for tail in tails:
            if draw(st.integers(0, 3)):
                found[stem + tail] = draw(values(templates))
    if paths != [""] and draw(st.booleans()):
        found[draw(st.sampled_from([".zgroup", "extra/.zgroup"]))] = _draw_document(draw, {"zarr_format": 2})
    if draw(st.integers(0, 4)) == 0:
        found["notes/readme"] = draw(values(templates))
    order = draw(st.permutations(list(found)))
    refs = {key: found[key].value for key in order}
    if not version:
        return Set(refs, found)
    document: dict[str, Any] = {"version": 1, "refs": refs}
    if templates:
        document["templates"] = templates
    if templates and paths != [""] and draw(st.booleans()):  # zarr has no arrays within arrays
        found |= _gen(document)
    return Set(document, found)


def _draw_document(draw: st.DrawFn, doc: dict[str, Any]) -> Spelled:
    text = json.dumps(doc)
    spelled = draw(st.sampled_from([doc, text, "base64:" + base64.b64encode(text.encode()).decode()]))
    return Spelled(spelled, text.encode(), "metadata")


def _gen(document: dict[str, Any]) -> dict[str, Spelled]:
    doc = {"zarr_format": 2, "shape": [3, 2], "chunks": [1, 1], "dtype": "|u1", "order": "C", "compressor": None}
    doc |= {"filters": None, "fill_value": 0}
    document["refs"]["gen/.zarray"] = doc
    entry = {"key": "gen/{{i}}.{{j}}", "url": "{{u}}/two", "offset": "{{(i*2+j)*10}}", "length": "{{7 + i}}"}
    document["gen"] = [{**entry, "dimensions": {"i": {"stop": 3}, "j": [0, 1]}}]
    made = {"gen/.zarray": Spelled(doc, json.dumps(doc).encode(), "metadata")}
    for i, j in itertools.product(range(3), range(2)):
        start = (i * 2 + j) * 10
        made[f"gen/{i}.{j}"] = Spelled(None, CONTENT["two"][start : start + 7 + i], "gen")
    return made


def reads_past_the_end(spelled: Spelled) -> bool:
    """For a range that ends beyond its target, fsspec returns the existing bytes: a truncated chunk."""
    return spelled.kind == "past the end"


def loses_templates_within_templates(spelled: Spelled) -> bool:
    """fsspec replaces the name of another template in a template by an empty text."""
    return spelled.kind == "nested template"


WRONG = (reads_past_the_end, loses_templates_within_templates)


def cannot_be_opened(found: Set) -> bool:
    """In a set with templates, a reference without a URL (the default target) is a TypeError in fsspec."""
    return "templates" in found.document and any(spelled.kind == "default" for spelled in found.values.values())


def parse(key: str, data: bytes) -> object:
    """Return metadata as parsed JSON, and all other values as bytes, to be compared."""
    return repr(json.loads(data)) if key.rpartition("/")[2] in METADATA else data


def read(fs: Any, key: str) -> object:
    return parse(key, fs.cat_file(key))


def open_fs(fo: Any, folder: Path, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, target=str(folder / DEFAULT), skip_instance_cache=True, **options)


def check_filesystem(fs: RefShardFileSystem, expected: Mapping[str, Spelled], *, listed: bool = True) -> None:
    """Compare every key, its bytes, and a range of them, with the expected values of the set."""
    if listed:
        assert set(fs.find("")) - {".zmetadata"} == expected.keys()
    for key, spelled in expected.items():
        if spelled.data is None:
            with pytest.raises(ReferenceNotReachable):
                fs.cat_file(key)
            continue
        assert read(fs, key) == parse(key, spelled.data), key
        if spelled.kind != "metadata":
            assert fs.cat_file(key, 3, -2) == spelled.data[3:-2]
            assert fs.info(key)["size"] == len(spelled.data)


EXAMPLES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@EXAMPLES
@given(found=draw_sets())
def test_random_sets_read_the_same_with_refshard_and_fsspec(found: Set, targets: Path) -> None:
    document = found.make_document(targets)
    ours = open_fs(document, targets)
    check_filesystem(ours, found.values)
    if cannot_be_opened(found):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = fsspec.filesystem(
            "reference", fo=document, target=str(targets / DEFAULT), fs={"file": {}}, simple_templates=False
        )
    assert set(theirs.find("")) == found.values.keys() == set(ours.find(""))
    for key, spelled in found.values.items():
        if any(is_wrong(spelled) for is_wrong in WRONG):
            continue
        assert read(theirs, key) == read(ours, key), (key, spelled)
        if spelled.kind not in ("metadata", "whole"):
            assert theirs.cat_file(key, 2, 5) == ours.cat_file(key, 2, 5)


@pytest.mark.parametrize(
    ("is_wrong", "value"),
    [
        (reads_past_the_end, ["DIR/one", SIZE - 5, 9]),
        (loses_templates_within_templates, ["{{n(c='one')}}", 0, 5]),
    ],
)
def test_known_errors_of_fsspec_still_occur(is_wrong: Any, value: Any, targets: Path) -> None:
    """If fsspec no longer has one of these errors, the function that recognises it can be removed."""
    templates = {"u": "DIR", "n": "{{u}}/{{c}}"}
    document = Set({"version": 1, "templates": templates, "refs": {"k": value}}, {}).make_document(targets)
    theirs = fsspec.filesystem("reference", fo=document, fs={"file": {}}, simple_templates=False)
    ours = open_fs(document, targets)
    match is_wrong.__name__:
        case "reads_past_the_end":
            assert len(theirs.cat_file("k")) == 5
            with pytest.raises(ReferenceNotReachable):
                ours.cat_file("k")
        case _:
            with pytest.raises(Exception, match="one"):
                theirs.cat_file("k")
            assert ours.cat_file("k") == CONTENT["one"][:5]
    assert is_wrong.__doc__


def test_fsspec_fails_on_default_targets_with_templates(targets: Path) -> None:
    value = Spelled([None, 1, 2], b"", "default")
    found = Set({"version": 1, "templates": {"u": "DIR"}, "refs": {"k": value.value}}, {"k": value})
    assert cannot_be_opened(found)
    with pytest.raises(TypeError):
        fsspec.filesystem("reference", fo=found.make_document(targets), target="x", fs={"file": {}})
    assert open_fs(found.make_document(targets), targets).cat_file("k") == CONTENT[DEFAULT][1:3]


def is_chunk_or_metadata(key: str) -> bool:
    """Return whether parquet sets and chunk manifests can hold a key: only chunks and metadata."""
    return not key.startswith("notes/")


@EXAMPLES
@given(found=draw_sets())
def test_json_parquet_manifests_and_index_cache_agree(
    found: Set, targets: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("set")
    (folder / "refs.json").write_text(json.dumps(found.make_document(targets)))
    for _ in ("decoded", "from the index cache"):
        INDEXES.clear()
        check_filesystem(open_fs(str(folder / "refs.json"), targets, index_cache=str(folder / "cache")), found.values)
        wait_for_writes()
        assert len(list((folder / "cache").iterdir())) == 1
    source = open_fs(str(folder / "refs.json"), targets)
    source.save(str(folder / "again.json"), "json")
    check_filesystem(open_fs(str(folder / "again.json"), targets), found.values)
    if not all(map(is_chunk_or_metadata, found.values)):
        for kind in ("parquet", "chunk-manifest"):
            with pytest.raises(ManifestError, match="notes/readme"):
                source.save(str(folder / kind), kind)
        return
    source.save(str(folder / "set.parq"), "parquet", record_size=3)
    check_filesystem(open_fs(str(folder / "set.parq"), targets), found.values)
    source.save(str(folder / "manifests"), "chunk-manifest")
    chunks = {key: spelled for key, spelled in found.values.items() if spelled.kind != "metadata"}
    check_filesystem(open_fs(str(folder / "manifests"), targets), chunks, listed=False)
    listed = open_fs(str(folder / "manifests"), targets).find("")
    assert {key for key in listed if key.rpartition("/")[2] not in ("zarr.json", "manifest.json")} == chunks.keys()
