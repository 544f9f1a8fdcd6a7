"""Objects copied within their filesystem: what one held outlives its replacement, and no byte passes through here.

Local files: a hard link, since an object is replaced by renaming another file over it. In memory: the same file once
more. S3: one CopyObject. A copy of these is the version that was copied, and one of it again is that version still.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.model import Facts
from refshard_fs.targets.local import replacing, sync_file
from refshard_fs.targets.s3 import is_s3fs

__all__ = ["copy"]

SINGLE: Final = 5 << 30  # bytes that one CopyObject takes at most


def copy(fs: AbstractFileSystem, path: str, new: str, found: Facts | None) -> None:
    """Let ``new`` be what ``path`` is, whole or not at all; FileNotFoundError if there is nothing.

    S3 refuses to copy another version than ``found``. Others are not asked.
    """
    match fs:
        case LocalFileSystem():
            _copy_local(path, new)
        case MemoryFileSystem():
            _copy_in_memory(fs, path, new)
        case _ if is_s3fs(fs) and (found is None or (found.size or 0) < SINGLE):
            _copy_in_s3(fs, path, new, found)
        case _:
            try:
                fs.cp_file(path, new)
            except NotImplementedError:
                fs.pipe_file(new, fs.cat_file(path))


def _copy_local(path: str, new: str) -> None:
    folder = os.path.dirname(new)
    os.makedirs(folder, exist_ok=True)
    draft = f"{new}.{uuid.uuid4().hex}.tmp"
    try:
        if os.path.islink(path):  # which may not lead there from elsewhere
            raise OSError(f"{path} is a symbolic link")
        os.link(path, draft)
        os.replace(draft, new)
    except FileNotFoundError:
        raise
    except OSError:  # there are filesystems without hard links
        with open(path, "rb") as source, replacing(new, durable=True) as file:
            shutil.copyfileobj(source, file)
        shutil.copystat(path, new)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)  # renaming one link of a file over another one leaves both
    sync_file(folder)


def _copy_in_memory(fs: MemoryFileSystem, path: str, new: str) -> None:
    if path not in fs.store:
        raise FileNotFoundError(path)
    fs.makedirs(new.rpartition("/")[0], exist_ok=True)
    fs.store[new] = fs.store[path]


def _copy_in_s3(fs: Any, path: str, new: str, found: Facts | None) -> None:
    bucket, key, _ = fs.split_path(path)
    to_bucket, to_key, _ = fs.split_path(new)
    when = {} if found is None or found.etag is None else {"CopySourceIfMatch": found.etag}
    source = {"Bucket": bucket, "Key": key}
    fs.call_s3("copy_object", fs.s3_additional_kwargs, CopySource=source, Bucket=to_bucket, Key=to_key, **when)
    fs.invalidate_cache(new)
