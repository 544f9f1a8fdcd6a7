"""Rules: sidecars locate fields; the errors for late, missing and replaced files differ."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, NotYetThere, ReferenceNotReachable, RefShardFileSystem, SourceNotReachable
from refshard_fs.formats.grib2.rule import Rule, parse_lines
from tests.servers.http import RangeServer
from tests.support.forecast_archive import ARCHIVES, Published, fill, find_section_3, publish
from tests.support.grib_messages import make_message

xr = pytest.importorskip("xarray")

RULES = Path(__file__).parents[3] / "examples" / "rules"
START = datetime(2026, 11, 1, tzinfo=UTC)
GRID = base64.b64encode(find_section_3(make_message())).decode()
PARAMETERS = {"2t": [0, 0, 0], "t": [0, 0, 0], "gh": [0, 3, 5], "tp": [0, 1, 193]}
VARIABLE = {"line": {}, "message": {"parameter": [0, 0, 0]}, "level": "x", "levels": [1]}


def make_variable(dialect: str, field: Published, levels: list[float]) -> dict[str, Any]:
    """Return the variable of a document for a field, at several levels unless ``levels`` is empty."""
    wgrib2 = {"name": field.name, "level": "{level} mb" if levels else field.level, "process": field.process}
    line = wgrib2 if dialect == "wgrib2" else field.mars | ({"levelist": "{level}"} if levels else {})
    surfaces = [[100]] if levels else [[103, 2]] if field.name == "TMP" else [[1, 0]]
    kind = {"parameter": PARAMETERS[field.keys["shortName"]], "surfaces": surfaces}
    if field.process:
        kind["statistic"] = 1
    more = {"level": "isobaricInhPa", "levels": levels} if levels else {"covers": field.covers} if field.covers else {}
    return {"line": line, "message": kind, **more, "attributes": {"units": "K"}}


def make_document(name: str, server: RangeServer, **members: Any) -> dict[str, Any]:
    """Return the rule of an archive on a server: a run every 6 hours, steps 0 to 2, and other ``members``."""
    archive = ARCHIVES[name]
    variables = {}
    for field in archive.fields:
        levels = [1000, 850, 500] if field.level.endswith("mb") else []
        covers = f"_{field.covers.replace(' ', '')}" if field.covers not in ("", "run") else ""
        variables[field.keys["shortName"] + covers] = make_variable(archive.dialect, field, levels)
    document = {
        "refshard": "rule", "url": f"{server.url}/{archive.url}", "sidecar": f"{server.url}/{archive.sidecar}",
        "dialect": archive.dialect, "time": {"start": "2026-11-01", "every": 6, "stop": "2026-11-01T06"},
        "step": {"values": [[0, 2, 1]]}, "grids": [GRID], "variables": variables,
    }  # fmt: skip
    if archive.names or name == "ifs-ens":
        document["number"] = {"values": [[0, 2, 1]], **({"names": list(archive.names)} if archive.names else {})}
    return {**document, **members}


def open_document(document: dict[str, Any], **options: Any) -> Any:
    """Return the dataset and the file system of a document."""
    fs = RefShardFileSystem(json.dumps(document).encode(), **options)
    return xr.open_dataset(fs.get_mapper(""), engine="zarr", consolidated=False, decode_timedelta=True), fs


@pytest.mark.parametrize("name", ARCHIVES)
def test_fields_of_every_archive_equal_published_values(name: str) -> None:
    archive = ARCHIVES[name]
    with RangeServer() as server:
        members = (0, 1, 2) if archive.names or name == "ifs-ens" else ()
        want = {}
        for run, step in itertools.product((0, 6), range(3)):
            values = publish(server, archive, START + timedelta(hours=run), step, members)
            want |= {(run // 6, step, *key): value for key, value in values.items()}
        got, _ = open_document(make_document(name, server))
        assert list(got.step.values / np.timedelta64(1, "h")) == [0, 1, 2]
        assert got.valid_time.values[1, 2] == np.datetime64("2026-11-01T08")
        found = {name: variable.values for name, variable in got.data_vars.items()}
        for (run, step, published, level, covers, number), values in want.items():
            field = next(f for f in archive.fields if (f.name, f.level, f.covers) == (published, level, covers))
            key = field.keys["shortName"] + (f"_{covers.replace(' ', '')}" if covers not in ("", "run") else "")
            at = (run, step, *((number,) if members else ()))
            at += ([1000, 850, 500].index(int(level.split()[0])),) if level.endswith("mb") else ()
            np.testing.assert_array_equal(found[key][at], values, key)


def get_last_run() -> datetime:
    """Return the time of the last run that has begun; there is a run every 6 hours."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    return hour - timedelta(hours=hour.hour % 6)


def make_endless_document(server: RangeServer, due: int = 24) -> dict[str, Any]:
    """Return the rule of an archive without an end, which began three days ago."""
    start = get_last_run() - timedelta(days=3)
    return make_document("hrrr", server, time={"start": f"{start:%Y-%m-%dT%H}", "every": 6, "due": due})


def test_run_takes_one_round_of_sidecars_and_one_of_fields() -> None:
    with RangeServer() as server:
        rule = make_document("hrrr", server, step={"values": [[0, 11, 1]]})
        values = [publish(server, ARCHIVES["hrrr"], START, step) for step in range(12)]
        got, _ = open_document(rule)
        before = len(server.requests())
        field = got["t"].sel(isobaricInhPa=850)[0].values
        for step, published in enumerate(values):
            np.testing.assert_array_equal(field[step], published["TMP", "850 mb", "", 0])
        requests = server.requests()[before:]
        assert [request.path.endswith(".idx") for request in requests] == 12 * [True] + 12 * [False]
        got["gh"][0].values  # noqa: B018  # the sidecars are not read again
        assert len([r for r in server.requests() if r.path.endswith(".idx")]) == 12


def test_best_estimate_takes_two_rounds() -> None:
    """For each valid time, the last run that has it is selected, as in docs/pages/files.md."""
    with RangeServer() as server:
        values = {(r, s): publish(server, ARCHIVES["ifs"], START + timedelta(hours=6 * r), s)
                  for r in (0, 1) for s in (0, 6)}  # fmt: skip
        got, _ = open_document(make_document("ifs", server, step={"values": [0, 6]}))
        valid = (got.time + got.step).values
        best = [max(zip(*np.nonzero(valid == time), strict=True)) for time in np.unique(valid)]
        runs, steps = (xr.DataArray(list(places), dims="valid_time") for places in zip(*best, strict=True))
        before = len(server.requests())
        found = got["2t"].isel(time=runs, step=steps).values
        are_sidecars = [request.path.endswith(".index") for request in server.requests()[before:]]
        assert are_sidecars == 3 * [True] + 3 * [False]
        for place, (run, step) in enumerate([(0, 0), (1, 0), (1, 6)]):
            np.testing.assert_array_equal(found[place], values[run, step]["TMP", "2 m above ground", "", 0])


def test_new_run_is_read_at_once_and_shown_after_reopening() -> None:
    with RangeServer() as server:
        last = get_last_run()
        for hours in (12, 6):
            publish(server, ARCHIVES["hrrr"], last - timedelta(hours=hours), 0)
        got, fs = open_document(make_endless_document(server))
        assert got.sizes["time"] == 12
        with pytest.raises(NotYetThere, match="is due by"):
            fs.cat_file("2t/12.0.0.0")
        with pytest.raises(NotYetThere):  # a late step of a run that is shown
            got["2t"][-1].values  # noqa: B018
        values = publish(server, ARCHIVES["hrrr"], last, 0)
        data = fs.cat_file("2t/12.0.0.0")
        np.testing.assert_array_equal(
            np.frombuffer(data, "<f4").reshape(31, 16), values["TMP", "2 m above ground", "", 0]
        )
        fs.invalidate_cache()
        again = xr.open_dataset(fs.get_mapper(""), engine="zarr", consolidated=False, decode_timedelta=True)
        assert again.sizes["time"] == 13
        np.testing.assert_array_equal(again["2t"][-1, 0].values, values["TMP", "2 m above ground", "", 0])


def test_key_is_missing_if_rule_or_sidecar_excludes_it() -> None:
    with RangeServer() as server:
        publish(server, ARCHIVES["hrrr"], START, 0)
        rule = make_document("hrrr", server, step={"values": [[0, 2, 1]], "last": {"06": 1}})
        rule["variables"]["none"] = rule["variables"]["2t"] | {"line": {"name": "NONE"}}
        _, fs = open_document(rule)
        for key in ("none/0.0.0.0", "2t/0.1.0.0", "2t/1.2.0.0", "2t/7.0.0.0"):
            with pytest.raises(FileNotFoundError):
                fs.cat_file(key)
        sidecar = fill("/" + ARCHIVES["hrrr"].sidecar, START, 0, "")
        server.delete(sidecar)
        fs.invalidate_cache()
        with pytest.raises(ReferenceNotReachable, match=r"existing file .*f00.grib2, found none"):
            fs.cat_file("2t/0.0.0.0")


STALE = {
    "shifted": (lambda data, lines: (b"\0" + data, lines), "expected a GRIB message at the offset in the sidecar"),
    "of another length": (lambda data, lines: (data, lines[:1] + lines[2:]), "as in the sidecar, found"),
    "in another order": (
        lambda data, lines: (data, [lines[1].replace(":TMP:1000 mb:", ":TMP:2 m above ground:"), *lines[2:]]),
        "expected parameter 0.0.0 at 2 of kind 103 .*, found 0.0.0 at 100000 of kind 100",
    ),
    "of another run": (
        lambda data, lines: (data.replace(bytes((0x07, 0xEA, 11, 1)), bytes((0x07, 0xEA, 11, 2))), lines),
        "expected time 1793491200, found 1793577600",
    ),
    "of another grid": (
        lambda data, lines: (make_message(np.zeros(496), shortName="2t", jScansPositively=1) + data, [
            lines[0],
            f"2:{len(make_message(np.zeros(496), shortName='2t', jScansPositively=1))}:d=2026110100:A:b:anl:\n",
        ]),
        "expected time|expected grid",
    ),
    "no sidecar": (lambda data, lines: (data, ["<html>\n"]), "expected a line as wgrib2 writes it"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STALE)
def test_file_that_does_not_fit_its_sidecar_is_an_error(kind: str) -> None:
    change, reason = STALE[kind]
    with RangeServer() as server:
        archive = ARCHIVES["hrrr"]
        publish(server, archive, START, 0)
        paths = ["/" + fill(text, START, 0, "") for text in (archive.url, archive.sidecar)]
        data, lines = (bytes(server._resources[path].data) for path in paths)
        data, changed = change(data, lines.decode().splitlines(keepends=True))
        server.put(paths[0], data)
        server.put(paths[1], "".join(changed).encode())
        _, fs = open_document(make_document("hrrr", server))
        with pytest.raises(ReferenceNotReachable, match=reason):
            fs.cat_file("2t/0.0.0.0")


def test_http_error_for_a_sidecar_is_not_a_missing_field() -> None:
    with RangeServer() as server:
        publish(server, ARCHIVES["hrrr"], START, 0)
        server.fault(403, path="*.idx")
        _, fs = open_document(make_document("hrrr", server))
        with pytest.raises(ReferenceNotReachable, match="403"):
            fs.cat_file("2t/0.0.0.0")


def test_http_error_for_a_sidecar_names_the_sidecar(tmp_path: Path) -> None:
    """Sidecars of late runs are requested when the document is opened. The error names the sidecar with the reason."""
    path = tmp_path / "rule.json"
    with RangeServer() as server:
        server.fault(403, path="*.idx")
        path.write_text(json.dumps(make_endless_document(server)))
        reason = (
            rf"rule.json cannot be opened: {server.url}\S+\.idx: HTTP 403.*Credentials go into options=..{server.url}"
        )
        with pytest.raises(SourceNotReachable, match=reason):
            RefShardFileSystem(str(path), allow="any").ls("")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"url": "{time}"}, r"has \{time:\}"),
        ({"url": "{time:%c}"}, "expected one of"),
        ({"url": "{step.__class__}"}, "a single brace"),
        ({"url": "{number}"}, "expected one of"),
        ({"url": "{step:99999999}"}, "expected one of"),
        ({"dialect": "other"}, "Invalid enum value"),
        ({"grids": []}, "has grid 0: expected less than 0"),
        ({"step": {"values": [[0, 1 << 30, 1]]}}, "expected at most"),
        ({"step": {"values": [3, 1]}}, "ascending numbers, found 1 after 3"),
        ({"step": {"values": []}}, "it has no steps"),
        (
            {"time": {"start": "2026-11-02", "every": 6, "stop": "2026-11-01"}},
            "start is 2026-11-02: expected at most its stop",
        ),
        ({"time": {"start": "x", "every": 6}}, "Invalid isoformat"),
        ({"time": {"start": "2026-11-01", "every": 1, "due": 10**6}}, "1000000 hours: expected at most 128 hours"),
        ({"more": 1}, "unknown field"),
        ({"time": {"start": "0001-01-01", "every": 1, "stop": "9999-12-31"}}, "87649393 runs: expected at most"),
        ({"time": {"start": "0001-01-01", "every": 1}}, "runs: expected at most"),
        ({"time": {"start": "2026-01-01", "every": 10**17}}, "every"),
        ({"time": {"start": "2026-01-01", "every": 10**7, "due": 10**8}}, "date value out of range"),
        ({"time": {"start": "0001-01-01T00:00+14:00", "every": 1}}, "date value out of range"),
        ({"step": {"values": [10**17]}}, "Expected `int` <= 2147483647"),
        *(
            ({"variables": {name: VARIABLE}}, "cannot be the name")
            for name in ("", "a/b", "\0", "time", "valid_time", "x")
        ),
    ],
)
def test_invalid_document_is_an_error(change: dict[str, Any], reason: str) -> None:
    with RangeServer() as server:
        rule = make_document("hrrr", server, **change)
    with pytest.raises(ManifestError, match=reason):
        RefShardFileSystem(json.dumps(rule).encode()).ls("")


def test_valid_times_have_small_chunks() -> None:
    with RangeServer() as server:
        time = {"start": "2026-11-01", "every": 6, "stop": "2026-12-01"}
        rule = make_document("hrrr", server, step={"values": [[0, (1 << 14) - 1, 1]]}, time=time)
    fs = RefShardFileSystem(json.dumps(rule).encode())
    assert json.loads(fs.cat_file("valid_time/.zarray"))["chunks"] == [64, 1 << 14]
    hours = np.frombuffer(fs.cat_file("valid_time/1.0"), "<i8").reshape(64, -1) // 3600
    assert hours[2, 5] == START.timestamp() // 3600 + 66 * 6 + 5


@pytest.mark.parametrize("name", ARCHIVES)
def test_example_rules_have_the_urls_and_grids_of_archives(name: str) -> None:
    """The grids of `examples/rules` come from messages that NOAA and ECMWF published."""
    rule = Rule.parse((RULES / f"{name}.json").read_bytes(), name)
    root = rule.url.split("/")[:3]
    archive = ARCHIVES[name]
    assert [rule.url, rule.sidecar] == ["/".join([*root, archive.url]), "/".join([*root, archive.sidecar])]
    fixed = msgspec.structs.replace(rule, time=msgspec.structs.replace(rule.time, stop=rule.time.start))
    got, _ = open_document(json.loads(fixed.dumps()))
    lat, lon = {"hrrr": (1059, 1799), "gefs": (361, 720)}.get(name, (721, 1440))
    assert got["t"].shape[-2:] == (lat, lon)
    if name == "hrrr":
        assert got.latitude.values[0, 0] == pytest.approx(21.138123)
        assert got.longitude.values[-1, -1] == pytest.approx(299.082807)
    else:
        assert got.latitude.values[[0, -1]].tolist() == [90, -90]
        assert got.longitude.values[0] == (-180 if name.startswith("ifs") else 0)


def test_remote_rule_cannot_read_local_files() -> None:
    with RangeServer() as server:
        rule = make_document("hrrr", server, url="file:///etc/{step}", sidecar="file:///etc/{step}.idx")
        fs = RefShardFileSystem(server.put("/rule.json", json.dumps(rule).encode()))
        with pytest.raises(refshard_fs.TargetNotAllowed):
            fs.cat_file("2t/0.0.0.0")


def test_steps_in_wgrib2_lines_are_parsed_as_hours() -> None:
    lines = """1:0:d=2026110100:APCP:surface:0-1 day acc fcst:
2:50:d=2026110100:WIND:10 m above ground:17-18 hour max fcst:ENS=+3
3.1:80:d=2026110100:UGRD:10 m above ground:15 min fcst:
3.2:80:d=2026110100:VGRD:10 m above ground:15 min fcst:
4:99:d=2026110100:TMP:surface:anl:
5:120:d=2026110100:APCP:surface:0-6 hour acc fcst:prob >25.4:prob fcst 255/255"""
    found = parse_lines(lines.encode(), "wgrib2").lines
    assert list(found.items()) == [
        (("APCP", "surface", "acc", "", "2026110100", "0", "24"), (0, 50)),
        (("WIND", "10 m above ground", "max", "", "2026110100", "17", "18"), (50, 80)),
        (("UGRD", "10 m above ground", "", "", "2026110100", "0.25", "0.25"), (80, 99)),
        (("VGRD", "10 m above ground", "", "", "2026110100", "0.25", "0.25"), (80, 99)),
        (("TMP", "surface", "", "", "2026110100", "0", "0"), (99, 120)),
        (("APCP", "surface", "acc", "prob >25.4:prob fcst 255/255", "2026110100", "0", "6"), (120, None)),
    ]


def test_saved_rule_is_the_same_document() -> None:
    with RangeServer() as server:
        rule = Rule.parse(json.dumps(make_document("gefs", server)).encode(), "it")
        assert Rule.parse(rule.dumps(), "it") == rule


def test_rules_can_be_checked_saved_and_joined(tmp_path: Path) -> None:
    with RangeServer() as server:
        for run, step in itertools.product((0, 6), range(3)):
            publish(server, ARCHIVES["hrrr"], START + timedelta(hours=run), step)
        path = tmp_path / "rule.json"
        path.write_text(json.dumps(make_document("hrrr", server)))
        got = xr.open_dataset(path, engine="refshard", decode_timedelta=True)
        report = refshard_fs.check(RefShardFileSystem(str(path)))
        assert not report.has_errors, report
        RefShardFileSystem(str(path)).save(str(tmp_path / "copy.json"))
        xr.testing.assert_identical(
            xr.open_dataset(tmp_path / "copy.json", engine="refshard", decode_timedelta=True).load(), got.load()
        )
        later = make_document("hrrr", server, time={"start": "2026-11-01T06", "every": 6, "stop": "2026-11-01T06"})
        first = make_document("hrrr", server, time={"start": "2026-11-01T00", "every": 6, "stop": "2026-11-01T00"})
        for name, document in (("a", first), ("b", later)):
            (tmp_path / f"{name}.json").write_text(json.dumps(document))
        both = refshard_fs.cube([str(tmp_path / "a.json"), str(tmp_path / "b.json")])
        joined = xr.open_dataset(both, engine="refshard", decode_timedelta=True)
        xr.testing.assert_equal(joined.load(), got)


def test_fields_in_sidecars_are_listed() -> None:
    with RangeServer() as server:
        publish(server, ARCHIVES["hrrr"], START, 0)
        publish(server, ARCHIVES["hrrr"], START, 2)
        rule = make_document("hrrr", server)
        _, fs = open_document(rule)
        assert [key for key in fs.ls("2t", detail=False) if key[-1].isdigit()] == ["2t/0.0.0.0", "2t/0.2.0.0"]
        assert not refshard_fs.check(fs).has_errors
        late = get_last_run() - timedelta(hours=6)
        publish(server, ARCHIVES["hrrr"], late, 0)
        _, fs = open_document(
            rule | {"time": {"start": f"{late:%Y-%m-%dT%H}", "every": 6, "stop": f"{late:%Y-%m-%dT%H}"}}
        )
        with pytest.raises(NotYetThere):
            fs.ls("2t")
        _, fs = open_document(rule | {"time": {"start": "2014-07-30", "every": 1, "stop": "2026-07-30"}})
        with pytest.raises(refshard_fs.NotListable, match="too many to list"):
            fs.ls("2t")


def test_large_archive_with_an_end_is_opened_without_requests() -> None:
    with RangeServer() as server:
        rule = make_document("hrrr", server, step={"values": [[0, 48, 1]]}, time={
            "start": "2014-07-30", "every": 1, "stop": "2026-07-30"})  # fmt: skip
        got, _ = open_document(rule)
        assert got.sizes["time"] * got.sizes["step"] > 5_000_000
        assert not server.requests()
