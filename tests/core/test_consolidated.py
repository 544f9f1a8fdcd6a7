"""Consolidated metadata agree with the documents that they repeat, in every kind of source."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem, check

GROUP = {2: {"zarr_format": 2}, 3: {"zarr_format": 3, "node_type": "group"}}


def array(version: int, **attributes: Any) -> dict[str, Any]:
    """Return the metadata documents of an array, by name."""
    if version == 2:
        more = {"chunks": [2], "dtype": "<i4", "compressor": None, "filters": None, "fill_value": 0, "order": "C"}
        return {".zarray": {"zarr_format": 2, "shape": [2], **more}, ".zattrs": attributes}
    return {
        "zarr.json": {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [2],
            "data_type": "int32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "fill_value": 0,
            "attributes": attributes,
        }
    }


def documents(version: int) -> dict[str, Any]:
    """Return documents of the arrays a, b and g/c, whose metadata are consolidated in the root and in g."""
    found: dict[str, Any] = {}
    for path in ("a", "b", "g/c"):
        found |= {f"{path}/{name}": document for name, document in array(version, units="m").items()}
    if version == 2:
        found |= {".zgroup": GROUP[2], "g/.zgroup": GROUP[2]}
        below = {key[2:]: document for key, document in found.items() if key.startswith("g/")}
        return found | {path + ".zmetadata": consolidated(2, members) for path, members in (("", found), ("g/", below))}
    nodes = {key.removesuffix("/zarr.json"): document for key, document in found.items()}
    found["g/zarr.json"] = GROUP[3] | {"consolidated_metadata": consolidated(3, {"c": nodes["g/c"]})}
    return found | {"zarr.json": GROUP[3] | {"consolidated_metadata": consolidated(3, nodes | {"g": GROUP[3]})}}


def consolidated(version: int, members: dict[str, Any]) -> dict[str, Any]:
    known = {"kind": "inline", "must_understand": False} if version == 3 else {"zarr_consolidated_format": 1}
    return {**known, "metadata": members}


def members(fs: RefShardFileSystem, path: str, version: int) -> dict[str, Any]:
    """Return the members of the consolidated metadata of the group ``path``."""
    found = json.loads(fs.cat_file(path + (".zmetadata" if version == 2 else "zarr.json")))
    members: dict[str, Any] = (found if version == 2 else found["consolidated_metadata"])["metadata"]
    return members


def write_source(tmp_path: Path, kind: str, version: int) -> str:
    """Write the documents to a source of this kind; return its URL."""
    path = tmp_path / {"json": "set.json"}.get(kind, "set")
    found = documents(version)
    if kind == "hierarchy":
        for key, document in found.items():
            (path / key).parent.mkdir(parents=True, exist_ok=True)
            (path / key).write_text(json.dumps(document))
    else:
        RefShardFileSystem({key: json.dumps(document) for key, document in found.items()}).save(
            str(path),
            format=kind,  # type: ignore[arg-type]
        )
    return str(path)


SOURCES = [("json", 2), ("json", 3), ("hierarchy", 2), ("hierarchy", 3), ("parquet", 2), ("parquet", 3)]


@pytest.mark.parametrize(("kind", "version"), SOURCES)
def test_consolidated_metadata_include_edits(tmp_path: Path, kind: str, version: int) -> None:
    url = write_source(tmp_path, kind, version)
    fs = RefShardFileSystem(url, mode="a", skip_instance_cache=True)
    with fs.transaction:
        changed = {
            f"{path}/{name}": document
            for path in ("a", "g/c", "new")
            for name, document in array(version, units="km").items()
        }
        fs.pipe({key: json.dumps(document).encode() for key, document in changed.items()})
        fs.rm("b", recursive=True)
        before = members(fs, "", version)
    there = RefShardFileSystem(url, skip_instance_cache=True)
    after = members(there, "", version)
    assert before == after
    names = {key: key if version == 2 else key.removesuffix("/zarr.json") for key in changed}
    assert {name: after[name] for name in names.values()} == {name: changed[key] for key, name in names.items()}
    assert not [name for name in after if name.split("/")[0] == "b"]
    if kind in ("json", "hierarchy"):  # other kinds make their own consolidated metadata in the root
        inner = members(there, "g/", version)
        assert (
            inner["c" if version == 3 else "c/.zattrs"]
            == array(version, units="km")["zarr.json" if version == 3 else ".zattrs"]
        )
    stale = [
        finding for finding in check(there).findings if (finding.severity, finding.kind) == ("warning", "consolidated")
    ]
    assert not stale


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_saved_consolidated_metadata_omit_absent_arrays(tmp_path: Path, kind: Any, version: int) -> None:
    reduced = {key: json.dumps(document) for key, document in documents(version).items() if not key.startswith("b/")}
    RefShardFileSystem(reduced).save(str(tmp_path / "set"), format=kind)
    fs = RefShardFileSystem(str(tmp_path / "set"))
    assert not [name for name in members(fs, "", version) if name.split("/")[0] == "b"]
    assert members(fs, "", version)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("spelled", ["base64", "reference"])
def test_documents_in_base64_or_references_stay_consolidated(tmp_path: Path, spelled: str, version: int) -> None:
    whole = {key: json.dumps(document) for key, document in documents(version).items()}
    refs: dict[str, Any] = dict(whole)
    for key in [key for key in refs if key.startswith("b/")]:
        path = tmp_path / key.replace("/", "_")
        path.write_text(whole[key])
        refs[key] = [str(path)] if spelled == "reference" else "base64:" + b64encode(path.read_bytes()).decode()
    RefShardFileSystem(refs).save(str(tmp_path / "set.json"))
    saved = RefShardFileSystem(str(tmp_path / "set.json"))
    assert members(saved, "", version) == members(RefShardFileSystem(whole), "", version)


def test_metadata_only_in_consolidated_metadata_are_kept(tmp_path: Path) -> None:
    """Readers of such a set have no other metadata."""
    only = {".zmetadata": documents(2)[".zmetadata"]}
    RefShardFileSystem(only).save(str(tmp_path / "set.json"))
    assert json.loads(RefShardFileSystem(str(tmp_path / "set.json")).cat_file(".zmetadata")) == only[".zmetadata"]


def test_writers_of_different_arrays_do_not_conflict(tmp_path: Path) -> None:
    """If two writers change different arrays, the consolidated metadata, which repeat both, are not a conflict."""
    url = write_source(tmp_path, "hierarchy", 2)
    first, second = (RefShardFileSystem(url, mode="a", skip_instance_cache=True) for _ in range(2))
    for fs, path in ((first, "a"), (second, "b")):
        assert fs.exists(".zmetadata")
        fs.pipe_file(f"{path}/.zattrs", b'{"units": "km"}')
    first.commit()
    second.commit()
    found = members(RefShardFileSystem(url), "", 2)
    assert found["a/.zattrs"] == found["b/.zattrs"] == {"units": "km"}
