"""Files of scans, and runs that resume."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import refshard_fs
from refshard_fs.cli import main
from refshard_fs.core.columns import Texts
from refshard_fs.core.model import Facts
from refshard_fs.errors import ManifestError, SourceNotReachable
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.sets.scanning import SameVersion, ScanResult
from refshard_fs.sets.scans_file import open_scans
from refshard_fs.source.collect import UnreadArrays
from tests.servers.http import RangeServer
from tests.support.set_files import make_plain_file, read_days, write_day_files


@pytest.fixture
def archive(http_server: RangeServer) -> Callable[[], list[str]]:
    """Return a function that puts forty days on the server, and returns their URLs."""
    return lambda: [http_server.put(f"{n}.nc", make_plain_file(n), modified=1e9) for n in range(40)]


def test_run_after_a_failed_run_scans_fewer_files(
    archive: Callable[[], list[str]], http_server: RangeServer, tmp_path: Path
) -> None:
    urls, kept = archive(), tmp_path / "scans"
    good = http_server.fault(500, "/39.nc")
    with pytest.raises(SourceNotReachable, match=r"39\.nc"):
        refshard_fs.concat(urls, "time", same=["x_bounds"], resume=kept, retries=0)
    assert good.kind == "status"
    http_server.heal()
    http_server.log.clear()
    cube = refshard_fs.concat(urls, "time", same=["x_bounds"], resume=kept, lazy=True)
    assert read_days(cube) == list(range(40))
    read = {request.path for request in http_server.requests() if request.sent > 100 and request.method == "GET"}
    assert "/39.nc" in read
    assert len(read) < 40
    http_server.log.clear()
    again = refshard_fs.concat(urls, "time", same=["x_bounds"], resume=kept, lazy=True)
    assert again.content == cube.content
    assert len(http_server.requests()) == 40
    assert all(request.method == "HEAD" or request.sent < 100 for request in http_server.requests())


def test_changed_file_is_scanned_again(tmp_path: Path) -> None:
    files, kept = write_day_files(tmp_path, "scipy", 3), tmp_path / "scans"
    refshard_fs.concat(files, "time", resume=kept)
    Path(files[1]).write_bytes(make_plain_file(7))
    cube = refshard_fs.concat(files, "time", resume=kept, sort=True)
    assert read_days(cube) == [0, 2, 7]


def test_files_of_truncated_scans_are_scanned_again(tmp_path: Path) -> None:
    files, kept = write_day_files(tmp_path, "scipy", 3), tmp_path / "scans"
    expected = refshard_fs.concat(files, "time", resume=kept, lazy=True).content
    whole = kept.read_bytes()
    for end in (0, 5, len(whole) // 2, len(whole) - 1):
        kept.write_bytes(whole[:end])
        assert refshard_fs.concat(files, "time", resume=kept, lazy=True).content == expected
        size = kept.stat().st_size
        assert size >= len(whole)
        assert refshard_fs.concat(files, "time", resume=kept, lazy=True).content == expected
        assert kept.stat().st_size == size


@pytest.mark.parametrize("writer", ["h5py", "scipy"])
def test_scans_of_similar_files_take_little_space(tmp_path: Path, writer: str) -> None:
    files, kept = write_day_files(tmp_path, writer, 70), tmp_path / "scans"
    expected = refshard_fs.concat(files, "time", lazy=True).content
    with ThreadPoolExecutor(1) as executor:
        assert refshard_fs.concat(files, "time", lazy=True, executor=executor, resume=kept).content == expected
    assert kept.stat().st_size < 70 * 600
    assert refshard_fs.concat(files, "time", lazy=True, resume=kept).content == expected
    eager = refshard_fs.concat(files, "time", resume=tmp_path / "others").references
    assert refshard_fs.concat(files, "time", resume=tmp_path / "others").references == eager


def test_unrelated_file_is_not_overwritten(tmp_path: Path) -> None:
    files, kept = write_day_files(tmp_path, "scipy", 2), tmp_path / "notes"
    kept.write_bytes(b"my notes")
    with pytest.raises(ManifestError, match="expects a new path"):
        refshard_fs.concat(files, "time", resume=kept)
    assert kept.read_bytes() == b"my notes"


@pytest.mark.skipif(os.name == "nt", reason="rights are spelled otherwise there")
def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    refshard_fs.concat(write_day_files(tmp_path, "scipy", 2), "time", resume=tmp_path / "scans")
    assert (tmp_path / "scans").stat().st_mode & 0o077 == 0


def test_file_of_a_damaged_scan_is_scanned_again(tmp_path: Path) -> None:
    files, kept = write_day_files(tmp_path, "scipy", 2), tmp_path / "scans"
    expected = refshard_fs.concat(files, "time", resume=kept, lazy=True).content
    data = bytearray(kept.read_bytes())
    data[len(data) // 3] ^= 0xFF
    kept.write_bytes(data)
    assert refshard_fs.concat(files, "time", resume=kept, lazy=True).content == expected


def test_resume_option_of_the_command_keeps_scans(tmp_path: Path) -> None:
    write_day_files(tmp_path, "scipy", 3)
    out, kept = str(tmp_path / "cube.refshard"), tmp_path / "scans"
    arguments = ["concat", f"{tmp_path}/*.nc3", "-o", out, "--dim", "time", "--lazy", "--resume", str(kept)]
    assert main(arguments) == 0
    size = kept.stat().st_size
    assert main(arguments) == 0
    assert kept.stat().st_size == size > 0


def test_kept_scan_is_found_for_another_order_of_names(tmp_path: Path) -> None:
    """The name of a record does not depend on the order in which a process iterates over sets of texts."""
    facts, refs = Facts(3, "etag"), ReferenceSet(Texts.of(["memory://a"]), {}, {})
    names = [f"name {n}" for n in range(50)]
    for function in ("", "module:function 0123"):
        path = str(tmp_path / f"scans{function[:1]}")
        with open_scans(path, [], {}, UnreadArrays(frozenset(names)), function) as (_, resolve):
            resolve("memory://a", ScanResult(refs, facts, [{"drop": ["x"]}]))
        with open_scans(path, ["memory://a"], {}, UnreadArrays(frozenset(names[::-1])), function) as (known, resolve):
            assert known == {"memory://a": facts}
            found = resolve("memory://a", SameVersion())
            assert isinstance(found, ScanResult)
            assert found.select == [{"drop": ["x"]}]
        with open_scans(path, ["memory://a"], {}, UnreadArrays(frozenset(names)), "another") as (known, _):
            assert known == {}
