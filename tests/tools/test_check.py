"""A check finds the faults of a source, and reports nothing for valid sources."""

from __future__ import annotations

import base64
import json
import sys
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from fsspec.callbacks import Callback

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.cli import main
from refshard_fs.core.checksums import crc32c
from refshard_fs.core.stats import UNASKED
from refshard_fs.tools.check import SHOWN, Ranges, Report, check
from refshard_fs.tools.survey import survey
from tests.servers.http import RangeServer


def make_array(shape: int = 6, chunk: int = 2, **more: Any) -> str:
    document = {"zarr_format": 2, "shape": [shape], "chunks": [chunk], "dtype": "|u1", "order": "C", "fill_value": 0}
    return json.dumps({**document, "filters": None, "compressor": None, **more})


V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes"}],
    "fill_value": 0,
}

Make = Callable[..., RefShardFileSystem]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a filesystem over the references of array ``a``, whose target ``data.bin`` has 8 bytes."""
    (tmp_path / "data.bin").write_bytes(b"01234567")

    def made(refs: dict[str, Any], **options: Any) -> RefShardFileSystem:
        path = tmp_path / "refs.json"
        metadata = {".zgroup": '{"zarr_format": 2}', "a/.zarray": make_array()}
        path.write_text(json.dumps({"version": 1, "refs": metadata | refs}))
        return RefShardFileSystem(fo=path, index_cache=False, skip_instance_cache=True, **options)

    return made


def list_findings(report: Report) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.kind, finding.key) for finding in report.findings]


GOOD = {"a/0": ["data.bin", 0, 2], "a/1": ["data.bin", 2, 2], "a/2": ["data.bin", 4, 2]}


@pytest.mark.parametrize("mode", ["head", "read", "full"])
def test_valid_set_has_no_findings(make: Make, mode: Any) -> None:
    report = check(make(GOOD), mode)
    assert not report.findings
    assert not report.counts
    assert (report.keys, report.arrays, report.chunks, report.missing, report.targets) == (5, 1, 3, 0, 1)


def test_missing_chunks_are_counted_without_an_error(make: Make) -> None:
    report = check(make({"a/1": ["data.bin", 0, 2], "b/.zarray": make_array(1000), "b/7": "xy"}))
    assert not report.findings
    assert report.missing == 2 + 499


def test_chunk_like_keys_outside_the_grid_are_errors(make: Make) -> None:
    refs = {**GOOD, "a/3": ["data.bin", 6, 2], "a/0.0": "xy", "a/01": "xy", "a/readme": "xy", "elsewhere/3": "xy"}
    report = check(make(refs))
    assert sorted(list_findings(report)) == [("error", "outside-grid", key) for key in ("a/0.0", "a/01", "a/3")]
    assert report.has_errors


def test_broken_set_is_one_finding(make: Make, tmp_path: Path) -> None:
    report = check(make({"a/.zarray": make_array(chunks=[2, 2])}))
    assert list_findings(report) == [("error", "source", "")]
    assert "a/.zarray" in report.findings[0].text
    assert list_findings(check(RefShardFileSystem(tmp_path / "nothing.json"))) == [("error", "source", "")]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("b/.zarray", "{"),
        ("b/.zarray", "[]"),
        ("b/.zarray", '{"zarr_format": 2}'),
        ("b/.zattrs", "nothing"),
        ("b/.zgroup", '{"zarr_format": 3}'),
        ("b/zarr.json", '{"zarr_format": 3, "node_type": "tree"}'),
        ("b/zarr.json", json.dumps({**V3, "codecs": None})),
        ("b/zarr.json", json.dumps({**V3, "codecs": 5})),
        ("b/zarr.json", json.dumps({**V3, "codecs": [{}]})),
        ("b/.zarray", make_array(compressor="zlib")),
        ("b/.zarray", make_array(filters=[{"id": 5}])),
        ("b/.zarray", make_array(filters=5)),
    ],
)
def test_metadata_that_breaks_the_rules_is_an_error(make: Make, key: str, text: str) -> None:
    fs = make({**GOOD, key: text})
    assert list_findings(check(fs)) == [("error", "metadata", key)]


@pytest.mark.parametrize("key", ["b/zarr.json", "b/.zgroup"])
def test_metadata_of_a_second_version_of_zarr_are_an_error(make: Make, key: str) -> None:
    document = make_array() if key == "b/zarr.json" else json.dumps(V3)
    report = check(make({**GOOD, key: document, "b/0": ["data.bin", 0, 1]}), "full")
    assert ("error", "metadata", key) in list_findings(report)


def test_consolidated_metadata_that_differs_is_a_warning(make: Make) -> None:
    members = {
        ".zgroup": {"zarr_format": 2},
        "a/.zarray": json.loads(make_array(7)),
        "b/.zarray": json.loads(make_array()),
    }
    document = json.dumps({"zarr_consolidated_format": 1, "metadata": members})
    report = check(make({**GOOD, ".zmetadata": document}))
    assert sorted(list_findings(report)) == [
        ("warning", "consolidated", "a/.zarray"),
        ("warning", "consolidated", "b/.zarray"),
    ]
    assert not report.has_errors


def test_consolidated_metadata_may_have_another_spelling(make: Make) -> None:
    text = make_array(fill_value=float("nan"), dtype="<f4")
    members = {".zgroup": {"zarr_format": 2}, "a/.zarray": json.loads(text) | {"dimension_separator": "."}}
    document = json.dumps({"zarr_consolidated_format": 1, "metadata": members})
    assert not check(make({**GOOD, "a/.zarray": text, ".zmetadata": document})).findings


def test_damaged_inline_data_is_an_error(make: Make) -> None:
    assert list_findings(check(make({**GOOD, "a/2": "base64:%%"}))) == [("error", "reference", "a/2")]


def test_overlapping_ranges_are_warnings(make: Make) -> None:
    refs = {"a/0": ["data.bin", 0, 4], "a/1": ["data.bin", 0, 4], "a/2": ["data.bin", 3, 2]}
    report = check(make(refs))
    assert list_findings(report) == [("warning", "duplicate-range", "a/1"), ("warning", "overlapping-range", "a/2")]
    assert "'a/0'" in report.findings[0].text
    assert "'a/0'" in report.findings[1].text or "'a/1'" in report.findings[1].text


def test_ranges_are_compared_across_spellings_of_one_target(make: Make, tmp_path: Path) -> None:
    report = check(make({"a/0": ["data.bin"], "a/1": [str(tmp_path / "data.bin"), 0, 8]}))
    assert list_findings(report) == [("warning", "duplicate-range", "a/1")]
    assert report.targets == 1


def test_ranges_beyond_the_target_are_errors(make: Make) -> None:
    report = check(make({"a/0": ["data.bin", 6, 2], "a/1": ["data.bin", 7, 2], "a/2": ["data.bin", 100, 1]}))
    beyond = [finding for finding in report.findings if finding.kind == "beyond-target"]
    assert [finding.key for finding in beyond] == ["a/1", "a/2"]
    assert "8 bytes" in beyond[0].text
    assert beyond[0].url.endswith("data.bin")


def test_many_findings_are_counted_and_the_first_shown(make: Make) -> None:
    refs = {"a/.zarray": make_array(200, 1)} | {f"a/{i}": ["data.bin", 9 + i, 1] for i in range(100)}
    report = check(make(refs))
    assert report.counts == {"beyond-target": 100}
    assert len(report.findings) == SHOWN


def test_missing_targets_are_errors(make: Make) -> None:
    report = check(make({**GOOD, "a/1": ["gone.bin", 0, 2], "a/2": ["gone.bin", 2, 2]}))
    assert list_findings(report) == [("error", "unreachable", "a/1")]
    assert "2 references" in report.findings[0].text


def test_each_target_is_requested_once_and_no_chunk_read(make: Make, http_server: RangeServer) -> None:
    url = http_server.put("/x", bytes(100))
    refs = {f"a/{i}": [url, i, 1] for i in range(3)}
    assert not check(make(refs)).findings
    (request,) = http_server.requests("/x")
    assert request.method == "HEAD"


def test_server_without_ranges_is_reported(make: Make, http_server: RangeServer) -> None:
    files = [http_server.put(f"/{name}", bytes(UNASKED + i)) for i, name in enumerate("xyz")]
    fs = make({f"a/{i}": [url, 0, 2] for i, url in enumerate(files)})
    assert list_findings(check(fs)) == []
    asked = http_server.requests()
    http_server.fault("ignored_range")
    (finding,) = check(fs).findings
    assert (finding.severity, finding.kind, finding.url) == ("warning", "no-ranges", files[-1])
    assert len(http_server.requests()) - len(asked) <= len(asked)  # at most one request more for each target


def test_refusal_by_a_server_is_an_error(make: Make, http_server: RangeServer) -> None:
    url = http_server.put("/x", bytes(100))
    http_server.fault(403, "/x")
    report = check(make({"a/0": [url + "?X-Amz-Signature=hidden", 0, 1]}))
    assert list_findings(report) == [("error", "unreachable", "a/0")]
    assert "hidden" not in json.dumps([finding.url + finding.text for finding in report.findings])


def test_targets_that_are_not_allowed_are_errors(http_server: RangeServer) -> None:
    refs = {"a/0": ["/etc/hostname", 0, 1], "a/1": [http_server.url + "/x", 0, 2]}
    refs |= {".zgroup": '{"zarr_format": 2}', "a/.zarray": make_array()}
    http_server.put("/x", bytes(2))
    source = http_server.put("/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    report = check(RefShardFileSystem(source, index_cache=False))
    assert list_findings(report) == [("error", "not-allowed", "a/0")]
    assert "allow=" in report.findings[0].text


def test_changed_etags_are_errors(http_server: RangeServer, tmp_path: Path) -> None:
    urls = [http_server.put(f"/{name}", b"0123") for name in ("same", "other")]
    with urllib.request.urlopen(urls[0]) as answer:
        etags = [answer.headers["ETag"], '"of another version"']
    transformers = [{"name": "chunk-manifest-json", "configuration": {"manifest": "./manifest.json"}}]
    (tmp_path / "zarr.json").write_text(json.dumps({**V3, "storage_transformers": transformers}))
    entries = [{"path": url, "offset": 0, "length": 2, "etag": etag} for url, etag in zip(urls, etags, strict=True)]
    (tmp_path / "manifest.json").write_text(json.dumps({f"{i}": entry for i, entry in enumerate(entries)}))
    report = check(RefShardFileSystem(str(tmp_path), skip_instance_cache=True))
    assert list_findings(report) == [("error", "changed", "c/1")]
    assert "of another version" in report.findings[0].text


def test_target_replaced_while_it_is_checked_is_an_error(make: Make, http_server: RangeServer) -> None:
    fs = make({"a/0": [http_server.put("/x", b"0123"), 0, 2]})
    assert not check(fs, "read").findings
    http_server.put("/x", b"012345678")
    assert list_findings(check(fs)) == [("error", "changed", "a/0")]


@pytest.mark.parametrize("separator", ["/", "."])
def test_damaged_shard_indexes_are_errors_and_rest_is_checked(make: Make, separator: str) -> None:
    inner = {"chunk_shape": [1], "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}]}
    encoding = {"name": "default", "configuration": {"separator": separator}}
    codecs = [{"name": "sharding_indexed", "configuration": inner}]
    sharded = json.dumps({**V3, "codecs": codecs, "chunk_key_encoding": encoding})
    index = np.array([0, 1, 2**64 - 1, 2**64 - 1], "<u8").tobytes()
    shard = b"x" + index + crc32c(index).to_bytes(4, "little")
    refs = {f"s/c{separator}{i}": "base64:" + base64.b64encode(shard).decode() for i in range(2)}
    fine = check(make({**GOOD, "s/zarr.json": sharded, **refs}))
    assert not fine.findings
    refs[f"s/c{separator}1"] = "x" * 37
    report = check(make({**GOOD, "s/zarr.json": sharded, **refs}), "read")
    assert list_findings(report) == [("error", "index", f"s/c{separator}{i}") for i in (2, 3)]
    assert (fine.missing, report.missing) == (2, 1)
    assert (fine.chunks, report.chunks, report.read) == (5, 4, 4)


def test_sources_that_cannot_be_listed_are_an_error(http_server: RangeServer) -> None:
    http_server.put("/z/zarr.json", json.dumps(V3).encode())
    http_server.put("/z/c/0", b"ab")
    assert list_findings(check(RefShardFileSystem(http_server.url + "/z/"))) == [("error", "not-listable", "")]


def test_reading_takes_evenly_spaced_chunks(make: Make) -> None:
    refs = {"a/.zarray": make_array(100, 1)} | {f"a/{i}": ["data.bin", i % 8, 1] for i in range(100)}
    fs = make(refs)
    read: list[str] = []
    session = fs.source
    read_all = session.read_all

    async def noted(requests: Any, *rest: Any) -> Any:
        read.extend(request.key for request in requests if not request.key.endswith("y") and request.key[0] == "a")
        return await read_all(requests, *rest)

    session.read_all = noted  # type: ignore[method-assign]  # to record the requests
    report = check(fs, "read", sample=4)
    assert read == ["a/0", "a/33", "a/66", "a/99"]
    assert (report.read, report.bytes_read, report.decoded) == (4, 4, 0)


def test_sample_larger_than_all_reads_all(make: Make) -> None:
    assert check(make({**GOOD, "a/2": "xy"}), "read", sample=1000).read == 3


def test_chunks_that_cannot_be_read_are_errors(make: Make, http_server: RangeServer) -> None:
    url = http_server.put("/x", bytes(4))
    http_server.fault(404, "/x", method="GET")
    report = check(make({"a/0": [url, 0, 2], "a/1": ["data.bin", 0, 2]}), "read")
    assert list_findings(report) == [("error", "unreadable", "a/0")]
    assert report.read == 1


COMPRESSED = {"a/.zarray": make_array(compressor={"id": "zlib", "level": 1})}


def test_full_check_decodes_every_chunk(make: Make) -> None:
    pytest.importorskip("zarr")
    chunk = "base64:" + base64.b64encode(zlib.compress(b"ab")).decode()
    inline = {f"a/{i}": chunk for i in range(3)}
    report = check(make(COMPRESSED | inline), "full")
    assert not report.findings
    assert report.decoded == report.read == 3
    report = check(make(COMPRESSED | inline | {"a/1": ["data.bin", 0, 8], "a/2": "xy"}), "full")
    assert sorted(list_findings(report)) == [("error", "undecodable", "a/1"), ("error", "undecodable", "a/2")]
    assert (report.read, report.decoded) == (3, 1)


def test_full_check_finds_chunks_of_a_wrong_length(make: Make) -> None:
    pytest.importorskip("zarr")
    assert list_findings(check(make({**GOOD, "a/1": ["data.bin", 0, 3]}), "full"))[0] == ("error", "undecodable", "a/1")


def test_full_check_takes_version_3(make: Make) -> None:
    zarr = pytest.importorskip("zarr")
    report = check(make({**GOOD, "b/zarr.json": json.dumps(V3), "b/c/0": "xy", "b/c/1": "x"}), "full")
    if zarr.__version__ < "3":
        assert list_findings(report) == [("warning", "not-decoded", "b")]
    else:
        assert list_findings(report) == [("error", "undecodable", "b/c/1")]


def test_missing_codecs_are_a_warning(make: Make) -> None:
    pytest.importorskip("zarr")
    report = check(make({**GOOD, "a/.zarray": make_array(compressor={"id": "no such codec"})}), "full")
    assert list_findings(report) == [("warning", "not-decoded", "a/.zarray")]
    assert report.read == 3


def test_full_check_without_zarr_is_reported(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    report = check(make(GOOD), "full")
    assert not report.findings
    assert (report.read, report.decoded) == (3, 0)
    assert "zarr is not installed" in report.notes[0]


def test_callback_gets_progress(make: Make) -> None:
    callback = Callback()
    check(make(GOOD), "read", callback=callback)
    assert callback.size == callback.value == 4


def test_hierarchies_are_checked_by_their_listing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".zarray").write_text(make_array())
    (tmp_path / "a" / "0").write_bytes(b"ab")
    (tmp_path / "a" / "9").write_bytes(b"ab")
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    report = check(RefShardFileSystem(str(tmp_path)), "full")
    assert list_findings(report) == [("error", "outside-grid", "a/9")]
    assert (report.arrays, report.chunks, report.missing, report.read) == (1, 1, 2, 1)


def test_wrong_arguments_are_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="mode="):
        check(make({}), "heads")  # type: ignore[arg-type]  # the invalid value
    with pytest.raises(ValueError, match="sample="):
        check(make({}), "read", sample=0)
    with pytest.raises(TypeError, match=r"a filesystem, such as RefShardFileSystem\('refs.json'\)"):
        check("refs.json")  # type: ignore[arg-type]  # the invalid type
    assert refshard_fs.check is check


@pytest.mark.parametrize("seed", range(5))
def test_reported_ranges_are_equal_overlap_or_exceed_the_target(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = {
        f"a/{i}": ["xy"[int(random.integers(2))], int(random.integers(40)), int(random.integers(1, 6))]
        for i in range(30)
    }
    fs = RefShardFileSystem({"a/.zarray": make_array(30, 1)} | rows)
    ranges = Ranges(survey(fs))
    again, before, within, outer = ranges.find_shared(np.full(2, 30, np.uint64))
    for i, j in zip(again, before, strict=True):
        assert rows[ranges.get_key(i)] == rows[ranges.get_key(j)]
    assert len(again) == len(rows) - len({tuple(row) for row in rows.values()})
    for i, j in zip(within, outer, strict=True):
        (url, start, _), (other, begin, length) = rows[ranges.get_key(i)], rows[ranges.get_key(j)]
        assert url == other
        assert begin <= start < begin + length
    beyond = {ranges.get_key(i) for i in ranges.find_beyond(np.full(2, 30, np.uint64))}
    assert beyond == {key for key, (_, start, length) in rows.items() if start + length > 30}


def test_command_fails_on_errors_and_not_on_warnings(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "refs.json")
    make(GOOD)
    assert main(["check", path, "--read", "2"]) == 0
    assert "no faults were found" in capsys.readouterr().out
    make({"a/0": ["data.bin", 0, 2], "a/1": ["data.bin", 0, 2]})
    assert main(["check", path, "--head"]) == 0
    assert "warning: duplicate-range: a/1" in capsys.readouterr().out
    make({"a/.zarray": make_array(200, 1)} | {f"a/{i}": ["data.bin", 9 + i, 1] for i in range(100)})
    assert main(["check", path]) == 1
    printed = capsys.readouterr().out
    assert "error: beyond-target: a/0: " in printed
    assert "beyond-target: 90 more" in printed


def test_command_prints_json(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make({**GOOD, "a/9": "xy"})
    assert main(["check", str(tmp_path / "refs.json"), "--full", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["has_errors"] is True
    assert printed["counts"] == {"outside-grid": 1}
    assert printed["findings"][0]["key"] == "a/9"
    assert (printed["mode"], printed["read"]) == ("full", 3)


def test_wrong_depth_of_a_check_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--read", "0"], ["--read", "x"], ["--head", "--full"]):
        with pytest.raises(SystemExit) as stopped:
            main(["check", "refs.json", *wrong])
        assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_report_escapes_invisible_characters() -> None:
    meta = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    name = "a\N{COMBINING GRAPHEME JOINER}\N{HANGUL FILLER}"
    document = json.dumps(meta | {"filters": None, "compressor": None})
    report = check(RefShardFileSystem({f"{name}/.zarray": document, f"{name}/7": "x"}))
    assert f"{name}/7" in [found.key for found in report.findings]
    assert "\\u034f\\u3164/7" in str(report)


@pytest.mark.parametrize("wrong", [{"order": "Q"}, {"chunks": [1, 1]}, {"chunks": [0]}, {"shape": [-1]}])
def test_unparsable_metadata_is_a_finding(wrong: dict[str, Any], tmp_path: Path) -> None:
    meta = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps({**meta, **wrong}), "b/.zarray": json.dumps(meta)}
    for key, text in refs.items():
        file = tmp_path / "folder.zarr" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    (found,) = check(RefShardFileSystem(str(tmp_path / "folder.zarr"))).findings[:1]
    assert (found.kind, found.key) == ("metadata", "a/.zarray")
    (found,) = check(RefShardFileSystem(str(tmp_path / "refs.json"))).findings
    assert found.kind == "source"
    assert "a/.zarray" in found.text


@pytest.mark.parametrize("suffix", [".json", ".nc"])
def test_check_of_a_cube_names_each_unreadable_piece(tmp_path: Path, suffix: str) -> None:
    """The first unreadable piece once hid the others, and the chunks of all pieces counted as missing."""
    paths = [tmp_path / f"{number}{suffix}" for number in range(5)]
    for number, path in enumerate(paths):
        ds = xr.Dataset({"v": ("x", [number, number + 0.5])}, {"x": [2 * number, 2 * number + 1]})
        ds.to_netcdf(path.with_suffix(".nc"), engine="h5netcdf")
        if suffix == ".json":
            RefShardFileSystem(path.with_suffix(".nc")).save(str(path))
    refshard_fs.open(list(map(str, paths))).save(str(tmp_path / "all.refshard"))
    paths[1].unlink()
    paths[3].write_bytes(b"nothing that is known")
    report = check(RefShardFileSystem(tmp_path / "all.refshard", skip_instance_cache=True, index_cache=False))
    faults = [finding for finding in report.findings if finding.key.startswith("v/")]
    assert [finding.key for finding in faults] == ["v/1", "v/3"]
    assert all(str(paths[n]) in finding.text for n, finding in zip((1, 3), faults, strict=True))
    assert (report.chunks, report.missing) == (4, 0)
    assert sum(report.counts.values()) == 2
