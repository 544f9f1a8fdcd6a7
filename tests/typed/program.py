"""A program of a user, for ``mypy --strict``: the types of what the public interface returns. It is not run."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import IO, Any, TextIO, assert_type

import refshard_fs
from refshard_fs import (
    ConflictError,
    ManifestError,
    ReferenceNotReachable,
    RefShardError,
    RefShardFileSystem,
    TargetChanged,
    TargetNotAllowed,
    append,
    check,
    concat,
    rebase,
    snapshot,
    tune_zarr,
)
from refshard_fs.reading.plan import PlannedRequest
from refshard_fs.sets.made_set import MadeSet
from refshard_fs.tools.check import Finding, Report
from refshard_fs.tools.plan_view import Plan


def reading() -> None:
    fs = RefShardFileSystem("s3://bucket/refs.json", remote_protocol="s3", remote_options={"anon": True})
    assert_type(fs, RefShardFileSystem)
    assert_type(fs.cat_file("a/0", start=0, end=10), bytes)
    assert_type(fs.cat(["a/0", "a/1"]), dict[str, bytes])
    assert_type(fs.cat(["a/0"], on_error="return"), dict[str, bytes | Exception])
    assert_type(fs.ls("a"), list[dict[str, Any]])
    assert_type(fs.ls("a", detail=False), list[str])
    assert_type(fs.find(""), list[str])
    assert_type(fs.find("", detail=True), dict[str, dict[str, Any]])
    assert_type(fs.glob("a/*"), list[str])
    assert_type(fs.exists("a"), bool)
    assert_type(fs.size("a/0"), int | None)
    assert_type(fs.du("a"), int)
    assert_type(fs.info("a/0"), dict[str, Any])
    assert_type(fs.read_text("a/.zattrs"), str)
    with fs.open("a/0") as binary:
        assert_type(binary, IO[bytes])
    with fs.open("a/.zattrs", "rt") as text:
        assert_type(text, TextIO)


def seeing() -> None:
    fs = RefShardFileSystem({"a/0": "text"}, allow="any")
    assert_type(fs.plan(["a/0"]), Plan)
    assert_type(fs.plan(["a/0"])[0], PlannedRequest)
    assert_type(fs.plan(["a/0"])[0].keys, tuple[str, ...])
    assert_type(fs.resolve("a/0"), tuple[str, int, int | None] | bytes)
    assert_type(fs.stats()["requests"], int)
    assert_type(fs.references, MutableMapping[str, Any])
    assert_type(fs.left_whole, dict[str, str])
    report = check(fs, "read", sample=10)
    assert_type(report, Report)
    assert_type(report.findings, tuple[Finding, ...])
    assert_type(report.has_errors, bool)


def making() -> None:
    both = concat(["one.json", "two.json"], "time")
    assert_type(both, MadeSet)
    assert_type(rebase(both, {"s3://old/": "s3://new/"}), MadeSet)
    assert_type(snapshot("s3://bucket/store.zarr"), MadeSet)
    both.save("both.parquet", "parquet")
    RefShardFileSystem(both).save("both.json")
    append("both.json", {"a/0": "text"}, "time")
    writer = RefShardFileSystem("both.json", mode="a")
    writer.pipe("a/1", b"data")
    writer.commit()
    with writer.transaction:
        writer.mv("a/1", "a/2")
    assert_type(writer.head("a/2", 4), bytes)
    assert_type(RefShardFileSystem.from_json(writer.to_json()), RefShardFileSystem)
    with tune_zarr(concurrency=64):
        pass
    assert_type(tune_zarr(), AbstractContextManager[object])
    refshard_fs.replace_reference_filesystem()


def failing(fs: RefShardFileSystem) -> str:
    try:
        fs.cat_file("a/0")
    except FileNotFoundError:
        return "no such key"
    except TargetNotAllowed as e:
        return assert_type(e.remedy, str)
    except TargetChanged as e:
        return assert_type(e.target, str)
    except (ReferenceNotReachable, ManifestError, ConflictError) as e:
        return str(e)
    except RefShardError as e:
        return str(e)
    return ""


def mistaken() -> None:
    refshard_fs.concatenate([])  # type: ignore[attr-defined]  # no such name
    RefShardFileSystem("refs.json", max_gap="wide")  # type: ignore[arg-type]
    check(RefShardFileSystem("refs.json"), "deep")  # type: ignore[arg-type]
    concat("one.json", dim=1)  # type: ignore[call-overload]
