"""zarr's settings change at its first read, unless this is turned off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3.1")

from refshard_fs import RefShardFileSystem, tune_zarr, zarr_pipeline  # noqa: E402  # zarr 3 alone
from tests.support.forked import ForkServer  # noqa: E402  # zarr 3 alone


@pytest.fixture(scope="module")
def python_with_zarr() -> Iterator[list[str]]:
    """A command in place of ``[sys.executable]`` whose process has imported zarr alone: see `ForkServer`."""
    with ForkServer("zarr") as server:
        yield server.python


@pytest.fixture(autouse=True)
def _pipeline() -> Iterator[None]:
    with tune_zarr(None, pipeline=True):
        yield


SCRIPT = """
import json, sys, warnings
{before}
from refshard_fs import RefShardFileSystem
fs = RefShardFileSystem(sys.argv[1], asynchronous=True)
import zarr
from zarr.storage import FsspecStore
array = zarr.open_array(FsspecStore(fs, read_only=True, path=""), path="a", mode="r")
print(type(array._async_array.codec_pipeline).__name__, int(array[:].sum()))
print("chunk by chunk" in repr(fs.stats()))
"""


MINE = """
import zarr
from zarr.core.codec_pipeline import BatchedCodecPipeline
class Mine(BatchedCodecPipeline): pass
zarr.registry.register_pipeline(Mine)
zarr.config.set({"codec_pipeline.path": "__main__.Mine"})
"""


@pytest.mark.parametrize(
    ("before", "environment", "name"),
    [
        ("", {}, "SelectionPipeline"),
        ("import zarr", {}, "SelectionPipeline"),
        ("import zarr", {"REFSHARD_ZARR_PIPELINE": "0"}, "BatchedCodecPipeline"),
        (MINE, {}, "Mine"),
        ("import sys; sys.modules['refshard_fs.zarr_pipeline'] = None", {}, "BatchedCodecPipeline"),
    ],
    ids=["zarr later", "zarr first", "turned off", "another is set", "cannot be imported"],
)
def test_pipeline_is_set_unless_turned_off(
    before: str, environment: dict[str, str], name: str, tmp_path: Path, python_with_zarr: list[str]
) -> None:
    """It is not set either if the user has set another pipeline, or if ours cannot be imported."""
    zarr.create_array(zarr.storage.LocalStore(tmp_path), name="a", data=np.arange(10), chunks=3)
    python = python_with_zarr if before else [sys.executable]
    run = subprocess.run(
        [*python, "-W", "ignore", "-c", SCRIPT.format(before=before), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert run.stdout.startswith(name), run.stderr
    assert run.stdout.split()[1:] == ["45", str(name != "SelectionPipeline")]


def test_zarr_settings_change_only_at_the_first_read_by_zarr(python_with_zarr: list[str]) -> None:
    code = """
import logging, signal, sys, warnings
import fsspec, numcodecs.registry, zarr
from refshard_fs import RefShardFileSystem
def settings():
    registries = numcodecs.registry.codec_registry, sys.modules["fsspec.registry"].known_implementations
    others = list(warnings.filters), logging.root.level, list(logging.root.handlers), signal.getsignal(signal.SIGINT)
    return *map(dict, registries), dict(fsspec.config.conf), *others
before = settings()
fs = RefShardFileSystem({"zarr.json": '{"zarr_format": 3, "node_type": "group"}', "k": "v"})
again = fsspec.filesystem("refshard", fo={"k": "w"}, asynchronous=True)
fs.cat_file("k"), fs.cat(["k"]), fs.find(""), fs.get_mapper(), fs.stats()
print(zarr.config.get("codec_pipeline.path") == zarr.config.defaults[0]["codec_pipeline"]["path"])
print(settings() == before)
zarr.open_group(fs.get_mapper(), mode="r")
print(zarr.config.get("codec_pipeline.path").startswith("refshard_fs."))
"""
    run = subprocess.run([*python_with_zarr, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert run.stdout.split() == ["True", "True", "True"], run.stderr


# Changes that a later zarr may make.
NO_HOOK = """
import zarr.core.array
made = zarr.core.array.create_codec_pipeline
zarr.core.array.create_codec_pipeline = lambda metadata, *, store=None: made(metadata)
del zarr.abc.codec.CodecPipeline.from_array_metadata_and_store
"""


OTHER_HOOK = """
import zarr.core.array
made = zarr.core.array.create_codec_pipeline
def create(metadata, *, store=None):
    if store is not None:
        try:
            return zarr.registry.get_pipeline_class().from_array_metadata_and_store(metadata, store, "a path")
        except NotImplementedError:
            pass
    return made(metadata)
def hook(cls, metadata, store, path):
    raise NotImplementedError
zarr.core.array.create_codec_pipeline = create
zarr.abc.codec.CodecPipeline.from_array_metadata_and_store = classmethod(hook)
"""


OTHER_DECODING = """
import zarr.core.codec_pipeline
zarr.core.codec_pipeline.decode_and_scatter_chunk = lambda data, out: None
"""


RENAMED_DECODING = """
import zarr.core.codec_pipeline
transform = zarr.core.codec_pipeline.ChunkTransform
transform.decode = transform.decode_chunk
del transform.decode_chunk
"""


NO_DECODING = """
import zarr.core.codec_pipeline
del zarr.core.codec_pipeline.decode_and_scatter_chunk
"""


NO_STORE = "import zarr.storage; del zarr.storage.StorePath"


is_fused = pytest.mark.skipif(zarr_pipeline._Fused is None, reason="this zarr has no function that decodes a chunk")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (NO_HOOK, "BatchedCodecPipeline"),
        (OTHER_HOOK, "BatchedCodecPipeline"),
        (NO_STORE, "BatchedCodecPipeline"),
        pytest.param(OTHER_DECODING, "BatchedCodecPipeline", marks=is_fused),
        pytest.param(RENAMED_DECODING, "BatchedCodecPipeline", marks=is_fused),
        pytest.param(NO_DECODING, "SelectionPipeline", marks=is_fused),
    ],
)
def test_stats_say_whether_a_changed_zarr_disables_the_pipeline(
    change: str, name: str, tmp_path: Path, python_with_zarr: list[str]
) -> None:
    zarr.create_array(zarr.storage.LocalStore(tmp_path), name="a", data=np.arange(10), chunks=3)
    code = SCRIPT.format(before=f"import zarr; zarr.__version__ = '4.0'\n{change}")
    run = subprocess.run([*python_with_zarr, "-W", "ignore", "-c", code, tmp_path], capture_output=True, text=True)
    assert run.stdout.split() == [name, "45", str(name != "SelectionPipeline")], run.stderr


def test_stats_show_the_current_pipeline() -> None:
    fs = RefShardFileSystem({"k": "v"}, skip_instance_cache=True)
    for pipeline in (True, False, True):
        with tune_zarr(None, pipeline=pipeline):
            assert ("chunk by chunk" in repr(fs.stats())) is not pipeline
