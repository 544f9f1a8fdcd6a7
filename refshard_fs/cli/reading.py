"""Commands that read keys: ``cat``, ``get``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser, Namespace

from fsspec.callbacks import Callback

from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import open_source
from refshard_fs.cli.printing import progress
from refshard_fs.errors import ManifestError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.keys import normalise

__all__ = ["COMMANDS"]


def _cat_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("keys", metavar="KEY", nargs="+", help="written one after the other")


def _cat(arguments: Namespace) -> None:
    fs = open_source(arguments)
    for key in arguments.keys:
        fs.get_file(key, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _get_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="a key; with -r, a directory or '' for all")
    parser.add_argument(
        "destination", metavar="DEST", nargs="?", help="a file or a directory; default: the last part of KEY"
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="all keys below KEY, into the directory DEST")


def _get(arguments: Namespace) -> None:
    fs, key = open_source(arguments), normalise(arguments.key)
    name = key.rpartition("/")[2]
    with progress("get") as shown:
        if arguments.recursive:
            _get_all(fs, key, arguments.destination or name or ".", shown)
            return
        destination = arguments.destination or name
        if not name or fs.isdir(key):
            raise IsADirectoryError(f"{key or '/'} is a directory: -r gets all keys below it")
        if os.path.isdir(destination):
            destination = os.path.join(destination, name)
        _put(fs, {key: destination}, os.path.dirname(destination) or ".", shown)


def _get_all(fs: RefShardFileSystem, key: str, destination: str, shown: Callback) -> None:
    keys = fs.find(key)
    if not keys:
        raise FileNotFoundError(key)
    cut = len(key) + 1 if key and keys != [key] else len(key.rpartition("/")[0]) + 1 if "/" in key else 0
    _put(fs, {name: _below(destination, name[cut:]) for name in keys}, destination, shown)


def _put(fs: RefShardFileSystem, files: dict[str, str], directory: str, shown: Callback) -> None:
    """Write keys to files; all are fetched aside, in ``directory``, before the first one appears."""
    os.makedirs(directory, exist_ok=True)
    aside = tempfile.mkdtemp(prefix=".refshard-", dir=directory)
    try:
        parts = [os.path.join(aside, str(number)) for number in range(len(files))]
        if len(files) == 1:
            fs.get_file(*files, *parts, callback=shown)  # it counts bytes
        else:
            fs.get(list(files), parts, callback=shown)
        for part, path in zip(parts, files.values(), strict=True):
            if not os.path.exists(part):  # nothing was read: it has no bytes
                open(part, "wb").close()
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            os.replace(part, path)
    finally:
        shutil.rmtree(aside)


def _below(directory: str, name: str) -> str:
    """Return the path of ``name`` below ``directory``; ManifestError if it would lie elsewhere."""
    root = os.path.realpath(directory)
    path = os.path.join(directory, *name.split("/"))
    if "\0" in name or os.path.isabs(name) or os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise ManifestError(f"{name!r} is no path below {directory!r}: nothing is written")
    return path


COMMANDS = (
    Command("cat", "write the bytes of keys to stdout", _cat, _cat_arguments),
    Command("get", "copy a key, or all keys below a path, to files", _get, _get_arguments),
)
