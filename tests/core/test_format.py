"""Another package adds a format, a packing of shards and a sink by its entry points alone."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import refshard_fs
from refshard_fs.core.format import Format, OpenOptions, Probe, list_packages_with_plugins, load_plugins
from refshard_fs.references.stream import ReferenceStream
from refshard_fs.sinks.sink import Destination, Sink
from tests.support.plugins import ENTRY_POINTS, OPEN, PLUGIN, run, write_tiny


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder with an installed plug-in, with the files that pip would write."""
    folder = tmp_path / "site"
    about = folder / "tiny_plugin-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(PLUGIN, folder)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


OPEN_TO_WRITE = OPEN.replace("(sys.argv[1])", "(sys.argv[1], mode='a')")


def test_format_of_another_package_is_recognised_and_read(
    fast_python: list[str], installed: Path, tmp_path: Path
) -> None:
    file = tmp_path / "x.tiny"
    file.write_bytes(b"TINY" + (2).to_bytes(4, "little") + b"abcdefgh")
    said = run(
        fast_python, OPEN + "print(sorted(fs.find('')), fs.cat_file('1'), fs.info('0')['size'])", installed, of=file
    )
    assert said == "['.zarray', '.zattrs', '0', '1'] b'efgh' 4"


def test_source_of_a_missing_plugin_is_not_recognised(fast_python: list[str], tmp_path: Path) -> None:
    file = tmp_path / "x.tiny"
    file.write_bytes(b"TINY")
    program = OPEN + "\ntry:\n    fs.ls('')\nexcept Exception as e:\n    print(type(e).__name__)"
    assert run(fast_python, program, of=file) == "UnknownSource"


def write_sharded(folder: Path) -> Path:
    """Write an array of three chunks of four bytes in two shards; the second chunk is missing."""
    array = folder / "array.zarr"
    array.mkdir()
    document = {"zarr_format": 2, "shape": [12], "chunks": [4], "dtype": "|u1", "order": "C", "fill_value": 0,
                "filters": None, "compressor": None, "paired": True}  # fmt: skip
    (array / ".zarray").write_text(json.dumps(document))
    (array / "0").write_bytes(b"\4\0abcd")
    (array / "1").write_bytes(b"\4\0ijkl")
    return array


def test_shards_of_another_package_are_shown_as_their_chunks(
    fast_python: list[str], installed: Path, tmp_path: Path
) -> None:
    array = write_sharded(tmp_path)
    program = OPEN + "print(sorted(fs.find('')), fs.cat_file('2'), fs.exists('1'), b'paired' in fs.cat_file('.zarray'))"
    assert run(fast_python, program, installed, of=array) == "['.zarray', '0', '2'] b'ijkl' False False"


def test_chunks_are_written_into_shards_of_another_package(
    fast_python: list[str], installed: Path, tmp_path: Path
) -> None:
    array = write_sharded(tmp_path)
    program = (
        "import sys\nfrom refshard_fs.fs import RefShardFileSystem\nfs = RefShardFileSystem(sys.argv[1], mode='a')"
    )
    run(fast_python, program + "\nfs.pipe_file('1', b'efgh')\nfs.commit()", installed, of=array)
    assert (array / "0").read_bytes() == b"\4\4abcdefgh"


def test_failing_plugin_index_is_an_error_for_its_keys(fast_python: list[str], installed: Path, tmp_path: Path) -> None:
    array = write_sharded(tmp_path)
    broken = "import tiny_plugin\ntiny_plugin.LengthsLevel = lambda: 1 / 0\n"
    show = "found = fs.cat(['.zarray', '0'], on_error='return')\nprint(type(found['.zarray']), type(found['0']))"
    assert run(fast_python, broken + OPEN + show, installed, of=array).startswith(
        "<class 'bytes'> <class 'refshard_fs.errors."
    )


@pytest.mark.parametrize("name", ["set.json", "set.parq", "set.zarr"])
def test_source_of_a_plugin_is_saved(fast_python: list[str], installed: Path, tmp_path: Path, name: str) -> None:
    file = write_tiny(tmp_path / "x.tiny", b"abcdefgh")
    url = str(tmp_path / name)
    run(fast_python, OPEN + f"fs.save({url!r})", installed, of=file)
    fs = refshard_fs.RefShardFileSystem(url)
    assert fs.cat_file("1") == b"efgh"


def test_sources_of_a_plugin_are_joined_checked_and_mapped(
    fast_python: list[str], installed: Path, tmp_path: Path
) -> None:
    for number, chunks in enumerate((b"abcdefgh", b"ijklmnop")):
        write_tiny(tmp_path / f"{number}.tiny", chunks)
    program = """
import sys, refshard_fs
from refshard_fs import RefShardFileSystem
urls = [f"{sys.argv[1]}/{number}.tiny" for number in range(2)]
for lazy in (False, True):
    joined = RefShardFileSystem(refshard_fs.concat(urls, dim="x", lazy=lazy))
    print(b"".join(joined.cat_file(str(number)) for number in range(4)).decode())
fs = RefShardFileSystem(urls[0])
report = refshard_fs.check(fs)
print(report.findings, report.chunks, fs.visualize())
"""
    said = run(fast_python, program, installed, of=tmp_path).splitlines()
    assert said[:2] == ["abcdefghijklmnop"] * 2
    assert said[2].startswith("() 2 <Picture: Where the bytes of 0.tiny lie: 2 of 2 chunks in 1 file")


def test_sources_of_a_plugin_are_converted_moved_and_compared(
    fast_python: list[str], installed: Path, tmp_path: Path
) -> None:
    for number, chunks in enumerate((b"abcdefgh", b"ijklmnop")):
        write_tiny(tmp_path / f"{number}.tiny", chunks)
    program = """
import json, sys, refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.cli import main
from refshard_fs.tools.diff import compare
from refshard_fs.tools.info import summarise
first, second = [f"{sys.argv[1]}/{number}.tiny" for number in range(2)]
pinned = refshard_fs.snapshot(first)
pinned.save(f"{sys.argv[1]}/grown.json")
refshard_fs.append(f"{sys.argv[1]}/grown.json", second, dim="x")
for fo in (pinned, f"{sys.argv[1]}/grown.json", RefShardFileSystem(first).select(isel={"x": slice(4, 8)})):
    fs = fo if isinstance(fo, RefShardFileSystem) else RefShardFileSystem(fo)
    print(b"".join(fs.cat_file(key) for key in fs.find("") if key.isdigit()).decode())
moved = refshard_fs.rebase(pinned.unpinned(), {sys.argv[1]: "s3://bucket"})
print(moved.references["1"])
changes = compare(RefShardFileSystem(first), RefShardFileSystem(second))
print(changes.keys[0].changed, summarise(RefShardFileSystem(first)).format)
sys.exit(main(["convert", first, f"{sys.argv[1]}/made.json"]))
"""
    said = run(fast_python, program, installed, of=tmp_path).splitlines()
    assert said[:3] == ["abcdefgh", "abcdefghijklmnop", "efgh"]
    assert said[3] == "['s3://bucket/0.tiny', 12, 4]"
    assert said[4] == "2 tiny"
    assert json.loads((tmp_path / "made.json").read_text())["refs"]["1"] == [str(tmp_path / "0.tiny"), 12, 4]


def test_failing_plugin_is_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("toy", "no_such_package:FORMAT", "refshard.formats")
    monkeypatch.setattr("refshard_fs.core.format._list_entry_points", lambda: [broken])
    with pytest.warns(RuntimeWarning, match=r"'toy' of refshard\.formats, no_such_package:FORMAT, cannot be loaded"):
        assert load_plugins("refshard.formats", Format, ()) == {}


def test_plugin_of_a_wrong_type_is_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    a_class = EntryPoint("toy", "refshard_fs.sinks:JsonSink", "refshard.sinks")
    monkeypatch.setattr("refshard_fs.core.format._list_entry_points", lambda: [a_class])
    with pytest.warns(RuntimeWarning, match="'toy' of refshard.sinks.*expected an object of Sink, got JsonSink"):
        assert load_plugins("refshard.sinks", Sink, ()) == {}


def test_plugin_with_a_taken_name_is_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not replace a format of this package or another plug-in; a plug-in registered twice loads once."""
    tiff, fits = (
        EntryPoint("toy", f"refshard_fs.formats.{name}:FORMAT", "refshard.formats") for name in ("tiff", "fits")
    )
    monkeypatch.setattr("refshard_fs.core.format._list_entry_points", lambda: [tiff, fits, fits])
    taken = Format("tiff", lambda probe: False, "none")
    with pytest.warns(RuntimeWarning, match="tiff:FORMAT, cannot be loaded.*its name 'tiff' is taken") as warned:
        assert load_plugins("refshard.formats", Format, [taken]) == {"tiff": taken, "fits": fits.load()}
    assert len(warned) == 1


def test_sink_without_a_name_is_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = EntryPoint("toy", "tests.core.test_format:NAMELESS", "refshard.sinks")
    monkeypatch.setattr("refshard_fs.core.format._list_entry_points", lambda: [nameless])
    with pytest.warns(RuntimeWarning, match="cannot be loaded and is left out: .* has no attribute 'name'"):
        assert load_plugins("refshard.sinks", Sink, ()) == {}


def test_error_names_format_that_returns_no_key_space(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Format("toy", lambda probe: probe.head == b"toy", "tests.core.test_format")
    monkeypatch.setattr("refshard_fs.source.recognition.load_formats", lambda: {"toy": toy})
    with pytest.raises(
        refshard_fs.SourceNotReachable, match=r"open_ of format 'toy' \(.*\) must .* returns a KeySpace, got dict"
    ):
        refshard_fs.RefShardFileSystem(b"toy").ls("")
    monkeypatch.setattr("tests.core.test_format.open_", lambda probe, options: {})
    with pytest.raises(refshard_fs.SourceNotReachable, match="must be a generator .*, got no generator, but dict"):
        refshard_fs.RefShardFileSystem(b"toy").ls("")


def test_error_names_format_that_fails_to_recognise(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Format("toy", lambda probe: probe.heads, "toy_module")  # type: ignore[attr-defined]
    monkeypatch.setattr("refshard_fs.source.recognition.load_formats", lambda: {"toy": toy})
    with pytest.raises(
        refshard_fs.SourceNotReachable, match=r"`recognises` of format 'toy' \(toy_module\) failed: AttributeError"
    ):
        refshard_fs.RefShardFileSystem(b"any").ls("")


class Nameless(Sink):
    def write(self, references: ReferenceStream, destination: Destination) -> None: ...


NAMELESS = Nameless()


def open_(probe: Probe, options: OpenOptions) -> Any:
    yield from ()
    return {}


@pytest.mark.parametrize("is_archive", [False, True], ids=["directory", "archive"])
def test_plugins_are_found_in_directories_and_archives(tmp_path: Path, is_archive: bool) -> None:
    files = {
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/entry_points.txt": "[refshard.formats]\ntiny = tiny:FORMAT\n",
        "other-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n",
        "other-1.0.dist-info/entry_points.txt": "[console_scripts]\nother = other:main\n",
        "plain-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: plain\nVersion: 1.0\n",
    }
    place = tmp_path / "packages"
    if is_archive:
        with ZipFile(place, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    else:
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
    assert list_packages_with_plugins(str(place)) == ["tiny"]
