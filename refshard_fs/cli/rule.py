"""Define the command ``rule``, for documents that describe an archive of forecasts by a pattern of file names."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import refshard_fs
from refshard_fs.cli.command import argument, command, parse_pair, parse_positive, print_json, print_line, print_written
from refshard_fs.core.stats import format_count

_SHOWN: Final = 10  # names of each kind that are printed


def _parse_numbers(text: str) -> list[int | list[int]]:
    """Parse numbers such as "0-120,123-384/3": a range becomes [first, last, step], as in the document of a rule."""
    numbers: list[int | list[int]] = []
    try:
        for part in text.split(","):
            first, dash, rest = part.partition("-")
            last, slash, every = rest.partition("/")
            numbers.append([int(first), int(last), int(every) if slash else 1] if dash else int(first))
    except ValueError:
        raise ArgumentTypeError(f"expected numbers such as 0-120,123-384/3, got {text!r}") from None
    return numbers


@command(
    "new gfs.json --url 's3://noaa-gfs-bdp-pds/gfs.{time:%Y%m%d}/{time:%H}/atmos/gfs.t{time:%H}z.pgrb2.0p25."
    "f{step:03}' --start 2021-03-23 --every 6 --steps 0-120,123-384/3",
    argument("action", "make a document from files of the archive, or compare one with a run", "new|check",
             choices=["new", "check"], default=None),
    argument("document", "path of the document", "DOCUMENT"),
    argument("--run", "the run whose files are read (default: the last one that is due)", "TIME"),
    argument("--url", "names of files, with {time:%%Y%%m%%d%%H}, {step:03} and {number}", "TEMPLATE"),
    argument("--sidecar", "names of sidecars (default: FILE.idx, or with --dialect ecmwf .index in place of .grib2)",
             "TEMPLATE"),
    argument("--dialect", "lines of sidecars (%(default)s)", choices="wgrib2 ecmwf"),
    argument("--start", "time of the first run", "TIME"),
    argument("--stop", "time of the last run; without it, the archive has no end", "TIME"),
    argument("--every", "hours between runs (%(default)s)", "HOURS", type=parse_positive, default=6),
    argument("--due", "hours after which a run is complete (%(default)s)", "HOURS", type=parse_positive, default=24),
    argument("--steps", "steps in hours, such as 0-120,123-384/3", "NUMBERS", type=_parse_numbers, default=[0]),
    argument("--members", "members of an ensemble, such as 0-30", "NUMBERS", type=_parse_numbers),
    argument("--names", "names of members in names of files, such as c00,p01", "NAME,NAME..."),
    argument("--option", "argument of RefShardFileSystem; VALUE is JSON, or else text", "KEY=VALUE", type=parse_pair,
             action="append", default=[]),
    sources=(),
    json=True,
)  # fmt: skip
def _rule(arguments: Namespace) -> int:
    """Make a document that computes the URLs and ranges of an archive of forecasts, or compare it with one forecast."""
    from refshard_fs.core.format import OpenOptions  # not imported for --help
    from refshard_fs.formats.grib2.rule import Rule, parse_time
    from refshard_fs.formats.grib2.rule_samples import add_variables, choose_samples, compare_run
    from refshard_fs.references.values import make_resolver
    from refshard_fs.security.policy import directory_of

    path = Path(arguments.document)
    source = refshard_fs.RefShardFileSystem({}, **dict(arguments.option)).source
    resolve = make_resolver(OpenOptions(), directory_of(path))
    is_new = arguments.action == "new"
    rule = Rule.parse(_draft_rule(arguments) if is_new else path.read_bytes(), str(path))
    due = datetime.now(UTC) - timedelta(hours=rule.time.due)
    at = min(due, parse_time(rule.time.stop)) if rule.time.stop else due
    run = (parse_time(arguments.run) if arguments.run else at) - rule.start
    number = run // timedelta(hours=rule.time.every)
    if is_new:
        rule = source.run("", lambda: add_variables(rule, choose_samples(rule, number), resolve))
        path.write_bytes(rule.dumps())
        print_written(arguments, str(path), [format_count(len(rule.variables), "variable")])
        return 0
    comparison = source.run("", lambda: compare_run(rule, number, resolve))
    if arguments.json:
        print_json(comparison)
        return int(not comparison.is_same)
    print_line(f"run {rule.compute_time(number):%Y-%m-%dT%H}Z: {format_count(comparison.fields, 'field')} found")
    for what, names in {
        "sidecar that does not exist": comparison.absent,
        "variable without a line": comparison.unfound,
        "message of another field": [f"{name}: {reason}" for name, reason in comparison.misplaced.items()],
        "line of no variable": comparison.unnamed,
    }.items():
        for name in names[:_SHOWN]:
            print_line(f"{what}: {name}")
        if len(names) > _SHOWN:
            print_line(f"{what}: {len(names) - _SHOWN:,} more")
    return int(not comparison.is_same)


def _draft_rule(arguments: Namespace) -> bytes:
    """Return a document from the command line, without variables."""
    from refshard_fs.core.zarrmeta import dumps

    if not arguments.url or not arguments.start:
        raise ValueError("a new rule needs --url and --start")
    ecmwf = arguments.url.removesuffix(".grib2") + ".index"
    document: dict[str, Any] = {
        "refshard": "rule",
        "url": arguments.url,
        "sidecar": arguments.sidecar or (ecmwf if arguments.dialect == "ecmwf" else arguments.url + ".idx"),
        "dialect": arguments.dialect,
        "time": {"start": arguments.start, "every": arguments.every, "stop": arguments.stop, "due": arguments.due},
        "step": {"values": arguments.steps},
        "grids": [],
        "variables": {},
    }
    if arguments.members:
        names = arguments.names.split(",") if arguments.names else []
        document["number"] = {"values": arguments.members, "names": names}
    return dumps(document)


COMMANDS = (_rule,)
