"""The first hour of four users, with their mistakes: every error message has a remedy.

Each message must contain facts (what was found, what to type), but not particular words.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.cli import main
from tests.servers.http import RangeServer
from tests.servers.wire import Answer

xarray = pytest.importorskip("xarray")
h5netcdf = pytest.importorskip("h5netcdf")
zarr = pytest.importorskip("zarr")

ZARR_2 = zarr.__version__.startswith("2.")


def write_day(path: Path, first: int) -> None:
    """Write a NetCDF file of four hours, as an instrument or a model does each day."""
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"time": 4, "x": 6}
        time = file.create_variable("time", ("time",), "i4", data=np.arange(first, first + 4))
        time.attrs["units"] = "hours since 2024-01-01"
        air = np.arange(24, dtype="f4").reshape(4, 6) + first
        file.create_variable("air", ("time", "x"), "f4", data=air, chunks=(2, 3), compression="gzip")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``air.nc``, its references as ``refs.json``, the next day's, and a set of two groups."""
    folder = tmp_path_factory.mktemp("first-hour")
    for name, first in (("air", 0), ("next", 4)):
        write_day(folder / f"{name}.nc", first)
        made = folder / f"{name}.json"
        refshard_fs.snapshot(str(folder / f"{name}.nc")).save(str(made))
        made.write_text(made.read_text().replace(f"{folder}/", ""))  # the set lies beside its file
    shutil.copy(folder / "air.json", folder / "refs.json")
    group = '{"zarr_format": 2}'
    below = {f"{name}/{key}": value for name in ("land", "sea") for key, value in make_references(folder).items()}
    (folder / "grouped.json").write_text(json.dumps({".zgroup": group, **below}))
    return folder


def make_references(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = dict(RefShardFileSystem(str(folder / "refs.json")).references)
    return {key: value for key, value in found.items() if not key.startswith(".z")} | {".zgroup": '{"zarr_format": 2}'}


@pytest.fixture
def working_copy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder as the working directory."""
    shutil.copytree(folder, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "here"


def open_fs(what: Any, **options: Any) -> Any:
    return xarray.open_dataset(what, engine="refshard", **options)


def get_error(call: Callable[[], Any]) -> str:
    """Return the error text, of one line, with which ``call`` fails."""
    with pytest.raises(Exception, match=".") as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def find_missing(text: str, *facts: str) -> list[str]:
    return [fact for fact in facts if fact not in text]


class Saying(RangeServer):
    """A server that answers all requests with the same status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__()
        self.status, self.text = status, text.encode()

    async def answer(self, head: Any, body: bytes, request: Any) -> Answer:
        length = {"Content-Length": str(len(self.text)), "Content-Type": "text/xml"}
        return Answer(self.status, length, memoryview(self.text), discard=head.method == "HEAD")


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("refs.json", {}),
        (Path("refs.json"), {}),
        ("refshard::refs.json", {}),
        ("refshard://", {"storage_options": {"fo": "refs.json"}}),
        ("reference://", {"storage_options": {"fo": "refs.json"}}),
        ("air.nc", {}),
    ],
    ids=str,
)
def test_open_dataset_accepts_several_spellings_of_a_source(what: Any, options: Any, working_copy: Path) -> None:
    with open_fs(what, **options) as ds:
        assert dict(ds.sizes) == {"time": 4, "x": 6}
        assert ds["air"].sel(time="2024-01-01T01:00").values.tolist() == [6, 7, 8, 9, 10, 11]


CUT = '{"version": 1, "refs": {"a/0": ["air.nc", 0, '
MISTAKES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "the set as a path within refshard://": (
        "refshard://refs.json",
        {},
        ("'refshard::refs.json'", "storage_options={'fo': 'refs.json'}"),
    ),
    "no source": ("refshard://", {}, ("refshard::SOURCE", "storage_options={'fo': SOURCE}")),
    "a missing file": ("ref.json", {}, ("ref.json", "no such object", "Check the path")),
    "a pattern": ("2024/*.json", {}, ("2024/*.json' matches nothing", "there is no directory")),
    "a login page": ("login.json", {}, ("login.json", "<html>", "login")),
    "something else": ("notes.txt", {}, ("notes.txt", "kerchunk-json", "hdf5", "format=")),
    "an empty file": ("empty.json", {}, ("empty.json", "empty", "written to the end?")),
    "a file that is cut": ("cut.json", {}, ("cut.json", "not JSON", "ends too early, after", "written to the end?")),
    "a compressed file that is damaged": (
        "damaged.json.gz",
        {},
        ("damaged.json.gz", "compressed as a whole, and is damaged"),
    ),
    "an unknown format": (
        "refs.json",
        {"storage_options": {"format": "netcdf"}},
        ("'netcdf'", "netcdf3", "hdf5"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_error_of_a_wrong_source_names_it_and_the_problem(mistake: str, working_copy: Path) -> None:
    Path("login.json").write_text("<html><title>Log in")
    Path("notes.txt").write_text("some notes")
    Path("empty.json").touch()
    Path("cut.json").write_text(CUT)
    Path("damaged.json.gz").write_bytes(b"\x1f\x8b\x08\x00abcdefgh")
    what, options, facts = MISTAKES[mistake]
    text = get_error(lambda: open_fs(what, **options))
    assert find_missing(text, *facts) == [], text


def test_empty_group_warning_lists_groups_with_variables(working_copy: Path) -> None:
    with pytest.warns(UserWarning, match="land, sea") as told:
        open_fs("grouped.json")
    assert find_missing(str(told[0].message), "group='land'", "open_datatree") == []
    assert dict(open_fs("grouped.json", group="land").sizes) == {"time": 4, "x": 6}


def test_unused_target_options_error_has_a_remedy(working_copy: Path) -> None:
    with pytest.raises(TypeError, match=r"options=\{'s3://bucket/': \{'anon': \.\.\.\}\}"):
        open_fs("refs.json", storage_options={"anon": True})
    with pytest.raises(TypeError, match="did you mean remote_options=?"):
        open_fs("refs.json", storage_options={"remote_opts": {}})


SIGNED = "<Error><Code>{0}</Code><Message>{1}</Message></Error>"
STATUSES: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "a login page": (200, "<!DOCTYPE html><title>Log in</title>", ("login", "URL of the file itself")),
    "a refusal": (403, SIGNED.format("AccessDenied", "no"), ("403", "options={'{url}/': {'headers': {...}}}")),
    "a login that is missing": (401, "", ("401", "options={'{url}/': {'headers': {...}}}")),
    "a signature of S3 that has expired": (
        403,
        SIGNED.format("AccessDenied", "Request has expired"),
        ("expired", "The signature of the URL has expired"),
    ),
    "a signature of Google that has expired": (
        400,
        SIGNED.format("ExpiredToken", "Invalid argument.") + "<Details>Request signature expired at: 2024</Details>",
        ("expired", "The signature of the URL has expired"),
    ),
    "a signature of Azure that has expired": (
        403,
        SIGNED.format("AuthenticationFailed", "Signature not valid in the specified time frame"),
        ("expired", "The signature of the URL has expired"),
    ),
    "a token that has expired": (400, SIGNED.format("ExpiredToken", "has expired"), ("ExpiredToken", "log in again")),
    "nothing there": (404, "", ("no such object", "Check the path")),
}


@pytest.mark.parametrize("answer", STATUSES)
def test_refusal_by_a_server_has_a_remedy(answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, facts = STATUSES[answer]
    with Saying(status, text) as server:
        said = get_error(lambda: RefShardFileSystem(f"{server.url}/refs.json", retries=0).ls(""))
        assert find_missing(said, *(fact.replace("{url}", server.url) for fact in facts)) == [], said
        if status not in (200, 404):
            of_chunk = get_error(
                lambda: RefShardFileSystem({"a/0": [f"{server.url}/x.nc", 0, 9]}, retries=0).cat("a/0")
            )
            assert (
                find_missing(of_chunk, "'a/0'", "/x.nc [0:9]", *(f.replace("{url}", server.url) for f in facts)) == []
            )
        if status == 403 and "expired" not in said:
            assert main(["info", f"{server.url}/refs.json"]) == 2
            typed = capsys.readouterr().err
            assert f"""--option 'options={{"{server.url}/": {{"headers": {{...}}}}}}'""" in typed


def test_remote_set_with_local_files_error_has_a_remedy(http_server: RangeServer, working_copy: Path) -> None:
    refs = Path("refs.json").read_bytes()
    url = http_server.put("refs.json", refs.replace(b'"air.nc"', json.dumps(str(working_copy / "air.nc")).encode()))
    text = get_error(lambda: open_fs(url)["air"].load())
    assert find_missing(text, f"'{working_copy}/'", "allow=", "If you trust it") == [], text


@pytest.fixture(scope="module")
def bucket(s3_server: Any) -> str:
    name = f"microscope-{datetime.now(UTC):%H%M%S%f}"
    s3_server.create_bucket(name)
    pixels = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    store: dict[str, bytes] = {}
    meta = {"zarr_format": 2, "shape": [64, 64], "chunks": [32, 32], "dtype": "<u2", "order": "C", "fill_value": 0}
    store["0/.zarray"] = json.dumps({**meta, "filters": None, "compressor": None}).encode()
    store[".zgroup"] = b'{"zarr_format": 2}'
    store[".zattrs"] = json.dumps({"multiscales": [{"datasets": [{"path": "0"}]}]}).encode()
    for i in range(2):
        for j in range(2):
            store[f"0/{i}.{j}"] = pixels[32 * i : 32 * i + 32, 32 * j : 32 * j + 32].tobytes()
    for key, data in store.items():
        s3_server.put(f"{name}/image.zarr/{key}", data)
    return name


def test_public_s3_is_read_with_anon_and_an_endpoint(s3_server: Any, bucket: str) -> None:
    public = {"anon": True, "endpoint_url": s3_server.endpoint_url}
    fs = fsspec.filesystem("refshard", fo=f"s3://{bucket}/image.zarr", **public)
    pixels = zarr.open_array(fs.get_mapper("0"), mode="r")[30:34, 0]
    assert pixels.tolist() == [30 * 64, 31 * 64, 32 * 64, 33 * 64]
    where = {f"s3://{bucket}/": public}
    assert RefShardFileSystem(f"s3://{bucket}/image.zarr", options=where).isdir("0")


@pytest.mark.parametrize("anon", [False, True])
def test_refused_bucket_error_has_a_line_to_paste_unless_anon(anon: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with Saying(403, SIGNED.format("AccessDenied", "Access Denied")) as server:
        given = {"anon": True} if anon else {"key": "k", "secret": "s"}
        given |= {"endpoint_url": server.url}
        source = get_error(lambda: RefShardFileSystem("s3://pub/refs.json", **given, retries=0).ls(""))
        chunk = {"a/0": ["s3://pub/x.nc", 0, 9]}
        fs = RefShardFileSystem(chunk, remote_protocol="s3", remote_options=given, retries=0)
        reason = get_error(lambda: fs.cat("a/0"))
        options = ["--option", f"options={json.dumps({'s3://': given})}", "--option", "retries=0"]
        assert main(["info", "s3://pub/refs.json", *options]) == 2
        typed = capsys.readouterr().err
    for text in (source, reason):
        assert "Denied" in text
        assert ("options={'s3://pub/': {'anon': True}}" in text) == (not anon), text
        assert ("without credentials" in text) == anon, text
    assert ("""--option 'options={"s3://pub/": {"anon": true}}'""" in typed) == (not anon), typed


@pytest.mark.parametrize("url", ["s3://pub/refs.json", "s3://pub/image.zarr/", "simplecache::s3://pub/refs.json"])
@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (404, "NoSuchKey"), (404, "NoSuchBucket")])
def test_anonymous_users_are_advised_neither_login_nor_anon(url: str, status: int, code: str) -> None:
    with Saying(status, SIGNED.format(code, "no")) as server:
        public = {"anon": True, "endpoint_url": server.url}
        fs = RefShardFileSystem(url, target_options={"s3": public} if "::" in url else public, retries=0)
        text = get_error(lambda: fs.ls(""))
    assert find_missing(text, "without credentials" if status == 403 else "endpoint_url=") == [], text
    assert not any(word in text for word in ("target_options", "remote_options", "'anon'", "Credentials")), text


def test_commands_for_a_daily_set_work_or_propose_an_option(
    working_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["concat", "air.nc", "-o", "all.json", "--dim", "time"]) == 0
    assert find_missing(capsys.readouterr().out, "all.json", "keys", "written in") == []
    assert main(["append", "all.json", "next.nc", "--dim", "time"]) == 0
    assert "time: +4" in capsys.readouterr().out
    assert main(["append", "all.json", "next.nc", "--dim", "time"]) == 2
    again = capsys.readouterr().err
    assert find_missing(again, "--on-duplicate skip", "--on-duplicate replace") == [], again
    assert main(["append", "all.json", "next.nc", "--dim", "time", "--on-duplicate", "skip"]) == 0
    assert main(["concat", "air.nc", "air.json", "-o", "twice.json", "--dim", "time"]) == 2
    assert find_missing(capsys.readouterr().err, "--overlap first", "--overlap last") == []
    assert main(["concat", "2023/*.nc", "-o", "none.json", "--dim", "time"]) == 2
    assert "2023/*.nc" in capsys.readouterr().err
    with open_fs("all.json") as ds:
        assert ds["air"].shape == (8, 6)
        assert ds["time"].values[-1] == np.datetime64(datetime(2024, 1, 1) + timedelta(hours=7))


def test_rebase_follows_moved_data_and_names_wrong_prefixes(
    working_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rebase", "refs.json", "moved.json", "--from", "s3://old/", "--to", "s3://new/"]) == 2
    said = capsys.readouterr().err
    assert find_missing(said, "s3://old/", "air.nc", "--missing ignore") == [], said
    (working_copy / "deep").mkdir()
    shutil.move("air.nc", "deep/air.nc")
    assert main(["check", "refs.json"]) == 1
    assert "no such object" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert (
            main(["rebase", "refs.json", "moved.json", "--from", f"{working_copy}/", "--to", f"{working_copy}/deep/"])
            == 0
        )
    assert "snapshot" in capsys.readouterr().err  # a snapshot pins the files at their new URLs
    assert main(["check", "moved.json", "--full"]) == 0


def test_convert_replaces_only_on_request(working_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "air.nc", "air.zarr"]) == 0
    capsys.readouterr()
    assert main(["info", "air.zarr"]) == 0
    assert "warning" not in capsys.readouterr().out
    assert main(["convert", "air.nc", "air.zarr"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["convert", "air.nc", "air.zarr", "--overwrite"]) == 0


def test_plan_reads_little_and_resolve_returns_a_range(working_copy: Path) -> None:
    fs = RefShardFileSystem("refs.json")
    keys = [key for key in fs.find("air") if key[-1].isdigit()]
    assert sum(len(request.keys) for request in fs.plan(keys)) == len(keys) == 4
    assert fs.stats()["bytes_fetched"] < 64 << 10
    url, start, stop = fs.resolve(keys[0])
    assert Path(url).read_bytes()[start:stop] == fs.cat(keys[0])
    assert "bytes_fetched" in repr(fs.stats())
    assert not refshard_fs.check(fs, "full").has_errors
    assert "refs.json" in repr(fs)


def test_missing_keys_writes_and_unknown_names_raise_errors(working_copy: Path) -> None:
    fs = RefShardFileSystem("refs.json")
    for call in (fs.cat, fs.info, fs.ukey, fs.resolve, fs.ls):
        with pytest.raises(FileNotFoundError, match="none"):
            call("none")
    with pytest.raises(refshard_fs.ReadOnlyError, match="mode='a'"):
        fs.pipe_file("a", b"x")
    with pytest.raises(AttributeError):
        refshard_fs.nothing  # noqa: B018


def test_info_tree_check_and_open_give_no_warning(working_copy: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["info", "refs.json"]) == main(["tree", "air.nc"]) == main(["check", "refs.json"]) == 0
        with open_fs("refs.json") as ds:
            assert float(ds["air"].mean()) == 11.5
