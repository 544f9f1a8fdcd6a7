"""Another package adds a format and a way to pack shards, by its entry points and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import refshard_fs

PLUGIN = Path(__file__).with_name("tiny_plugin.py")
ENTRY_POINTS = """\
[refshard.formats]
tiny = tiny_plugin:FORMAT
[refshard.shards]
paired = tiny_plugin:SHARD_FORMAT
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder in which the plug-in is installed, as an installer leaves it."""
    folder = tmp_path / "site"
    about = folder / "tiny_plugin-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(PLUGIN, folder)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def run(program: str, *folders: Path, of: Path) -> str:
    """Return what a new process prints that finds packages in ``folders``."""
    paths = [*map(str, folders), str(Path(refshard_fs.__path__[0]).parent)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    found = subprocess.run([sys.executable, "-c", program, str(of)], env=environ, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


OPEN = """
import sys
from refshard_fs.fs import RefShardFileSystem
fs = RefShardFileSystem(sys.argv[1])
"""
OPEN_TO_WRITE = OPEN.replace("(sys.argv[1])", "(sys.argv[1], mode='a')")


def test_a_format_of_another_package_is_recognised_and_read(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.tiny"
    file.write_bytes(b"TINY" + (2).to_bytes(4, "little") + b"abcdefgh")
    said = run(OPEN + "print(sorted(fs.find('')), fs.cat_file('1'), fs.info('0')['size'])", installed, of=file)
    assert said == "['.zarray', '0', '1'] b'efgh' 4"


def test_without_the_package_nothing_recognises_it(tmp_path: Path) -> None:
    file = tmp_path / "x.tiny"
    file.write_bytes(b"TINY")
    program = OPEN + "\ntry:\n    fs.ls('')\nexcept Exception as e:\n    print(type(e).__name__)"
    assert run(program, of=file) == "UnknownSource"


def sharded(folder: Path) -> Path:
    """An array of three chunks of four bytes in two shards; the second chunk is not there."""
    array = folder / "array.zarr"
    array.mkdir()
    document = {"zarr_format": 2, "shape": [12], "chunks": [4], "dtype": "|u1", "order": "C", "fill_value": 0,
                "filters": None, "compressor": None, "paired": True}  # fmt: skip
    (array / ".zarray").write_text(json.dumps(document))
    (array / "0").write_bytes(b"\4\0abcd")
    (array / "1").write_bytes(b"\4\0ijkl")
    return array


def test_shards_of_another_package_are_shown_as_their_chunks(installed: Path, tmp_path: Path) -> None:
    array = sharded(tmp_path)
    program = OPEN + "print(sorted(fs.find('')), fs.cat_file('2'), fs.exists('1'), b'paired' in fs.cat_file('.zarray'))"
    assert run(program, installed, of=array) == "['.zarray', '0', '2'] b'ijkl' False False"


def test_chunks_are_written_into_shards_of_another_package(installed: Path, tmp_path: Path) -> None:
    array = sharded(tmp_path)
    program = (
        "import sys\nfrom refshard_fs.fs import RefShardFileSystem\nfs = RefShardFileSystem(sys.argv[1], mode='a')"
    )
    run(program + "\nfs.pipe_file('1', b'efgh')\nfs.commit()", installed, of=array)
    assert (array / "0").read_bytes() == b"\4\4abcdefgh"


def test_an_index_of_another_package_that_fails_is_the_error_of_its_keys_alone(installed: Path, tmp_path: Path) -> None:
    array = sharded(tmp_path)
    broken = "import tiny_plugin\ntiny_plugin.LengthsLevel = lambda: 1 / 0\n"
    show = "found = fs.cat(['.zarray', '0'], on_error='return')\nprint(type(found['.zarray']), type(found['0']))"
    assert run(broken + OPEN + show, installed, of=array).startswith("<class 'bytes'> <class 'refshard_fs.errors.")
