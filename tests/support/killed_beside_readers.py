"""A writer that commits to a local source again and again until it is killed; each commit replaces all chunks.

A script: ``python killed_beside_readers.py PATH FORMAT`` forks a writer for each line of its input, prints its process
id, and at its end whether it was killed. A writer continues with the number after the stored one.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import refshard_fs.formats.kerchunk_parquet.partition
import refshard_fs.writing.commit  # imported before the forks, and not by each process
from refshard_fs import RefShardFileSystem
from tests.support.hierarchy_model import make_array_document, make_group_document

WIDTH = 64  # bytes of a chunk


def count_chunks(number: int) -> int:
    """Return the number of chunks in the state ``number``."""
    return number % 5 + 20


def make_chunk(number: int) -> bytes:
    return str(number).encode().ljust(WIDTH, b".")


def open_source(path: str, format: str, mode: str = "a") -> RefShardFileSystem:
    settings = {} if mode == "r" else {"format": format, "inline_threshold": 16}
    return RefShardFileSystem(path, mode=mode, skip_instance_cache=True, index_cache=False, **settings)


def write(path: str, format: str, number: int) -> None:
    fs = open_source(path, format)
    if fs.exists("a/c"):
        fs.rm("a/c", recursive=True)
    documents = {"zarr.json": make_group_document(), "a/zarr.json": make_array_document((count_chunks(number),))}
    fs.pipe({**documents, **{f"a/c/{i}": make_chunk(number) for i in range(count_chunks(number))}})
    fs.commit()


def write_for_ever(path: str, format: str) -> None:
    number = int(open_source(path, format, "r").cat_file("a/c/0").rstrip(b"."))
    while True:
        number += 1
        write(path, format, number)


def main(path: str, format: str) -> None:
    warnings.simplefilter("ignore")
    while sys.stdin.readline():
        child = os.fork()
        if not child:
            try:
                write_for_ever(path, format)
            finally:
                os._exit(1)
        print(json.dumps(child), flush=True)
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.WIFSIGNALED(status)), flush=True)


if __name__ == "__main__":
    refshard_fs.formats.kerchunk_parquet.partition.require_pyarrow()
    main(*sys.argv[1:])
