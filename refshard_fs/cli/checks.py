"""The command ``check``: what is wrong with a source."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter

import msgspec

from refshard_fs.checking.findings import Report
from refshard_fs.checking.validate import check
from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import open_source, positive
from refshard_fs.cli.printing import print_json, print_line, progress
from refshard_fs.errors import redacted

__all__ = ["COMMANDS"]


def _check_arguments(parser: ArgumentParser) -> None:
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--head", action="store_true", help="ask each target, read no chunk (default)")
    depth.add_argument("--read", metavar="N", type=positive, help="read N chunks too, evenly spaced over all")
    depth.add_argument("--full", action="store_true", help="read all chunks, and decode them where zarr is installed")


def _check(arguments: Namespace) -> int:
    fs = open_source(arguments, index_cache=False)  # as it is now, not as it was
    with progress("check") as shown:
        if arguments.full:
            report = check(fs, "full", callback=shown)
        elif arguments.read is not None:
            report = check(fs, "read", sample=arguments.read, callback=shown)
        else:
            report = check(fs, callback=shown)
    if arguments.json:
        print_json(
            {"source": redacted(arguments.source), "has_errors": report.has_errors, **msgspec.to_builtins(report)}
        )
    else:
        print_line(redacted(arguments.source), "bold")
        _print_report(report)
    return int(report.has_errors)


def _print_report(report: Report) -> None:
    print_line(
        f"keys {report.keys:,}, arrays {report.arrays:,}, chunks {report.chunks:,} (missing {report.missing:,}), "
        f"targets {report.targets:,}; read {report.read:,} chunks, {report.bytes_read:,} bytes, "
        f"decoded {report.decoded:,}"
    )
    for finding in report.findings:
        where = ": ".join(filter(None, (finding.key, finding.url)))
        print_line(f"{finding.severity}: {finding.kind}: {where}{': ' if where else ''}{finding.text}")
    shown = Counter(finding.kind for finding in report.findings)
    for kind, count in sorted(report.counts.items()):
        if count > shown[kind]:
            print_line(f"{kind}: {count - shown[kind]:,} more")
    for note in report.notes:
        print_line(f"note: {note}")
    if not report.findings:
        print_line("nothing wrong was found")


COMMANDS = (
    Command("check", "what is wrong with metadata, ranges, targets and data", _check, _check_arguments, json=True),
)
