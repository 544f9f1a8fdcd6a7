"""Parsers handle some hundreds of nearly valid inputs; ``python -m tests.fuzz`` tries any number of inputs."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from tests.fuzz import driver, parsers
from tests.fuzz.mutation import Mutator
from tests.support.hdf4_files import make_hdf4_file

pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.once, pytest.mark.case(id="P32")]

# Inputs that once failed, found by `python -m tests.fuzz`.
FOUND = {
    "a codec that is not a text": (
        "bcolz_rootdir",
        b'{"dtype": "<f8", "cparams": {"clevel": 5, "shuffle": 1, "cname": {"a":1}}, "chunklen": 4}'
        b'\n--\n{"shape": [9], "nbytes": 72}\n--\n{}',
    ),
    "a manifest's key that is not UTF-8": ("chunk_manifest", b'{"0\xf20": {"path": "x"}}'),
    "a manifest's path that is not UTF-8": ("prefix_map", b'{"name":"chunk-manifest-json","a":"\xf8"}'),
    "a member named by half a surrogate pair": ("chunk_manifest", b'{"2.0": {"\\ud800": "abc"}}'),
    "a dimension of half a surrogate pair": ("templates", b'\n\n\nk\nu\n\n\n{"i": {"stop": "\\ud800"}}'),
    "a sharding named by half a surrogate pair": (
        "neuroglancer_info",
        b'{"data_type": "uint8", "num_channels": 1, "scales": [{"key": "a", "size": [8, 8, 8],'
        b' "chunk_sizes": [[4, 4, 4]], "encoding": "raw",'
        b' "sharding": {"@type": "neuroglancer_uint64_sharded_v1", "hash": "\\ud800"}}]}',
    ),
    "an attribute of deeply nested lists": (
        "neuroglancer_info",
        b'{"data_type": "uint8", "num_channels": 1, "scales": [{"key": "a", "size": [8, 8, 8],'
        b' "chunk_sizes": [[4, 4, 4]], "encoding": "raw", "resolution": ' + b"[" * 1500 + b"]" * 1500 + b"}]}",
    ),
    "an old image that decodes to terabytes": (
        "hdf4_file",
        make_hdf4_file({
            (106, 1): bytes([1, 21, 8, 0]), (306, 2): b"\1\x2c\0\2\1\x2f\0\2", (303, 2): bytes(9),
            (300, 2): b"\0\x0f\0\0" * 2 + b"\0\x6a\0\1\0\1\0\0\0\x0b\0\0",
        }),
    ),
    "a section shorter than its grid needs": (
        "grib1_values",
        bytes.fromhex(
            "4752494200007801000034806280ff80a70100000703170c000100000000000015000000000000000000000000"
            "00000000010204013030303100000000002001fe0a0004000300ea600000008000000000000000000000000000"
            "0000000018088004000000000800102030405060708090a0b00037373737"
        ),
    ),
    "an ellipsoid without a length": (
        "grib2_values",
        bytes.fromhex(
            "47524942ffff000200000000000000d800000015010062000004000107d703170c000000020000006103000000000c00"
            "00002107ffffffffffffffffffffffffffffff00000004000000030393870000000000b00000000000000000001e8480"
            "001e84800000000000000200000000000000000000000000000000000000000000000000000000000022040000000000"
            "0000ff80000000010000000001ffffffffffffffffffffff00000015050000000c000000000000800400000800000000"
            "0606ff000000110700102030405060708090a0b037373737"
        ),
    ),
    "a Mercator grid on no earth": (
        "grib2_values",
        bytes.fromhex(
            "47524942ffff000200000000000000cf00000015010062000004000107d703170c000000020000005803000000000c00"
            "00000d07d703170c000000ffffffffffffffff0000000400000003039387000000000030000000000000000001c9c380"
            "0000000000000000000000000000000000000000000000000000000000000000220400000000000000ff800000000100"
            "00000001ffffffffffffffffffffff00000015050000000c0000000000008004000008000000000606ff000000110700"
            "102030405060708090a0b037373737"
        ),
    ),
    "a projection around a missing longitude": (
        "grib2_values",
        bytes.fromhex(
            "47524942ffff000200000000000000c800000015010062000004000107d703170c000000020000005103000000000c00"
            "00001e05ffffffffffffffffffffffffffffff000000040000000302625a000000000030000000007fffffffffffffff"
            "00895440000001c9c38002faf0800000000000000000000000220400000000000000ff80000000010000000001ffffff"
            "ffffffffffffffff00000015050000000c0000000000008004000008000000000606ff00000011070010203040506070"
            "8090a0b037373737"
        ),
    ),
    "a grid of more partitions than memory holds": (
        "parquet_layout",
        b'{"metadata": {"a/.zarray": {"zarr_format": 2, "shape": [4, 69007199254740993], "chunks": [1, 2], "dtype":'
        b' "<f4", "compressor": null, "fill_value": 0, "order": "C", "filters": null}}, "record_size": 100}',
    ),
    "a dtype that numpy takes for fields": (
        "zarr_metadata",
        b'{"zarr_format": 2, "shape": [4, 6], "chunks": [1, 2], "dtype": ",f4", "compressor": null, "fill_value": 0,'
        b' "order": "C", "filters": null, "shards": [2, 2], "shard_format": "morton_order"}',
    ),
    "rows that are not there": ("kept_columns", b"\x01\x94\x90\x90\x91\x93\xa1a\x83\xa6counts\x91\x04\xa8encoding\x82"
                                b"\xa4name\xa2v2\xa9separator\xa1.\xa6shards\x90\x94\x90\x90\x90\xc0\x80"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_inputs_that_once_failed_are_handled(what: str) -> None:
    name, data = FOUND[what]
    harness = driver.load_harness(name)
    with harness.set_up():
        harness.check_input(data)


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.fuzz)])
@pytest.mark.parametrize("name", driver.list_names())
def test_nearly_valid_inputs_are_handled(name: str, count: int) -> None:
    failures = list(itertools.islice(driver.search(name, range(count), seed=0), 3))
    assert not failures, failures[0].reason


@pytest.mark.parametrize("name", driver.list_names())
def test_inputs_begin_with_the_seeds_and_are_reproducible(name: str) -> None:
    harness = driver.load_harness(name)
    first, second = driver.make_mutator(harness, 7), driver.make_mutator(harness, 7)
    again = [second.input(number) for number in range(59, -1, -1)]
    assert [first.input(number) for number in range(60)] == again[::-1]
    assert len({*again}) > 30
    assert [first.input(number) for number in range(len(harness.make_seeds()))] == harness.make_seeds()
    assert harness.__doc__


def test_other_seeds_make_other_inputs() -> None:
    found = [Mutator([b"0123456789"], seed, is_text=False).input(5) for seed in range(20)]
    assert len(set(found)) > 10


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A harness whose parser hangs, takes memory or raises an error, depending on the input."""
    module = ModuleType(f"{parsers.__name__}.broken")

    def check_input(data: bytes) -> None:
        match data:
            case b"hang":
                while True:
                    pass
            case b"grow":
                bytearray(b"x" * (300 << 20))
            case b"raise":
                raise KeyError("x")

    module.IS_TEXT, module.WORDS, module.check_input = False, (), check_input  # type: ignore[attr-defined]
    module.make_seeds, module.set_up = lambda: [b"fine"], nullcontext  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize(("data", "reason"), [(b"hang", "Hang"), (b"grow", "bytes of memory"), (b"raise", "KeyError")])
def test_hang_growth_and_foreign_error_are_failures(
    broken: ModuleType, monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
) -> None:
    monkeypatch.setattr(Mutator, "input", lambda self, number: data if number == 3 else b"fine")
    monkeypatch.setattr(driver, "PATIENCE", 0.5 if data == b"hang" else 60.0)  # using too much memory takes time, too
    (failure,) = driver.search("broken", range(6))
    assert failure[:2] == (3, data)
    assert reason in failure.reason


def test_command_reports_progress_and_reruns_an_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "neuroglancer_shards"]
    root = Path(__file__).parents[2]
    run = subprocess.run([*command, "--inputs", "300"], capture_output=True, text=True, cwd=root, check=True)
    assert "300 of 300 inputs" in run.stdout
    assert "0 failures" in run.stdout
    (tmp_path / "input").write_bytes(b"\1" + bytes(24))
    subprocess.run([*command, "--file", tmp_path / "input"], cwd=root, check=True)
    subprocess.run([*command, "--only", "17"], cwd=root, check=True)
