"""Derive the variables of a rule from files of an archive, and compare a rule with a run of the archive."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core.model import Facts, Load, ParsedIndex, Span, Stat, Steps, run_together
from refshard_fs.errors import SourceNotReachable
from refshard_fs.formats.grib2.library import ParameterName
from refshard_fs.formats.grib2.messages import Field, Grib, UnshownPart, parse_length
from refshard_fs.formats.grib2.rule import (
    DIALECTS,
    FieldChunks,
    FieldPlace,
    Kind,
    Rule,
    RuleVariable,
    Sidecar,
    fill_template,
    parse_lines,
)
from refshard_fs.formats.grib2.source import LEVEL_UNITS, scan_messages

_ATTRIBUTES: Final = ("long_name", "units", "standard_name")
_BUCKETS: Final = (3, 6, 12, 24)  # hours of the buckets that are tried for `RuleVariable.covers`
_LEVEL_MEMBERS: Final = {"wgrib2": "level", "ecmwf": "levelist"}


class Sample(NamedTuple):
    """A file of an archive: its run, step and member."""

    time: datetime
    step: int
    member: int | None = None


def choose_samples(rule: Rule, run: int) -> list[Sample]:
    """Return the files of a run that have the first step, and four successive steps later on.

    The time ranges of sums and means at these steps determine `RuleVariable.covers`.
    """
    time = rule.compute_time(run)
    steps = [step for step in rule.steps if step <= rule.step.last.get(f"{time:%H}", step)]
    third = len(steps) // 3
    chosen = dict.fromkeys([steps[0], *steps[third : third + 4]])
    return [Sample(time, step, rule.members[-1] if rule.members else None) for step in chosen]


class _SampleField(NamedTuple):
    """A field of a sample at ``step``, and the members of its line in the sidecar that distinguish variables."""

    step: int
    line: tuple[tuple[str, str], ...]
    field: Field
    name: ParameterName

    @property
    def begin(self) -> int:
        """The step, in hours, at which the time range of the values begins."""
        parameter = self.field.parameter
        return self.step if parameter.statistic == 255 else self.step - parameter.length

    @property
    def unit(self) -> int:
        """The unit of the level, as a power of ten of the SI unit."""
        return LEVEL_UNITS.get(self.name.level, 0)


def make_urls(rule: Rule, sample: Sample, resolve: Callable[[str | None], str]) -> tuple[str, str]:
    """Return the URLs of a file and of its sidecar."""
    values: dict[str, Any] = {"time": sample.time, "step": sample.step}
    if rule.number is not None and sample.member is not None:
        names = rule.number.names
        values["number"] = names[rule.members.index(sample.member)] if names else sample.member
    url, sidecar = (resolve(fill_template(text, values)) for text in (rule.url, rule.sidecar))
    return url, sidecar


def add_variables(rule: Rule, samples: Sequence[Sample], resolve: Callable[[str | None], str]) -> Steps[Rule]:
    """Return the rule with the variables and grids of ``samples`` in place of its own."""
    fields: list[_SampleField] = []
    for fields_of_file in (yield from run_together([_read_sample(rule, sample, resolve) for sample in samples])):
        fields += fields_of_file
    grids: dict[bytes, int] = {}
    for field in fields:
        grids.setdefault(field.field.grid, len(grids))
    groups: dict[Any, list[_SampleField]] = {}
    for field in fields:
        kind = Kind.make(field.field.parameter)
        groups.setdefault((field.line, kind, field.field.grid), []).append(field)
    single_levels = [variable for group in groups.values() for variable in _split_by_range(group, grids)]
    variables: dict[str, RuleVariable] = {}
    for name, variable in _join_levels(rule.dialect, single_levels):
        variables[_choose_name(name, variable, variables)] = variable
    return msgspec.structs.replace(rule, grids=[base64.b64encode(grid).decode() for grid in grids], variables=variables)


def _read_sample(rule: Rule, sample: Sample, resolve: Callable[[str | None], str]) -> Steps[list[_SampleField]]:
    """Return the supported fields of a file; SourceNotReachable if the file or its sidecar does not exist."""
    url, sidecar = make_urls(rule, sample, resolve)
    facts: Facts | None
    lines: Sidecar | None
    load = Load(Span(sidecar, optional=True), ParsedIndex(parse_lines, (rule.dialect,)))
    facts, lines = yield Stat(url, fresh=True), load
    if facts is None or facts.size is None or lines is None:
        if facts is not None and lines is not None:
            raise SourceNotReachable(f"{url}: expected a file whose size the server reports, found no size")
        missing = url if facts is None else sidecar
        raise SourceNotReachable(f"expected a file and its sidecar, found nothing at {missing}: choose another run")
    by_offset: dict[int, list[tuple[str, ...]]] = {}
    for key, (start, _) in lines.lines.items():
        by_offset.setdefault(start, []).append(key)
    grib = Grib(url, Span(url, 0, facts.size), facts.size, b"")
    scan = yield from scan_messages(grib, sorted(by_offset))
    dialect = DIALECTS[rule.dialect]
    starts = sorted(by_offset)
    fields = []
    used = dict.fromkeys(starts, 0)  # by start of a message: the number of its lines whose field was found
    for field in scan.fields:
        if isinstance(field, UnshownPart):
            continue
        start = max(at for at in starts if at <= field.parts[0][0])
        keys = by_offset[start]
        key = keys[min(used[start], len(keys) - 1)]
        used[start] += 1
        line = {
            name: value
            for name, value in zip(dialect.members, key, strict=True)
            if value and name not in dialect.templates
        }
        fields.append(_SampleField(sample.step, tuple(line.items()), field, scan.names[field.parameter]))
    return fields


def _split_by_range(
    group: Sequence[_SampleField], grids: Mapping[bytes, int]
) -> list[tuple[_SampleField, RuleVariable]]:
    """Return the variables of fields that differ only in step and time range: one for each value of `covers`."""
    first = group[0]
    kind = Kind.make(first.field.parameter)
    attributes = {name: value for name, value in first.name.attributes.items() if name in _ATTRIBUTES}
    variable = RuleVariable(dict(first.line), kind, grid=grids[first.field.grid], attributes=attributes)
    if kind.statistic == 255:
        return [(first, variable)]
    ranges = {(field.step, field.begin) for field in group}
    steps = {step for step, _ in ranges}
    lengths = {step - begin for step, begin in ranges if step > begin}
    choices = ["run", *(f"last {hours}" for hours in sorted(lengths)), *(f"bucket {hours}" for hours in _BUCKETS)]
    left = set(ranges)
    variables = []
    for covers in choices:
        candidate = msgspec.structs.replace(variable, covers=covers)
        expected = {(step, candidate.compute_begin(step)) for step in steps}
        if expected <= ranges and expected & left:
            variables.append((first, candidate))
            left -= expected
    return variables


def _join_levels(
    dialect: str, single_levels: Sequence[tuple[_SampleField, RuleVariable]]
) -> list[tuple[str, RuleVariable]]:
    """Return pairs of a name and a variable; variables that differ only in their level become one with levels."""
    member = _LEVEL_MEMBERS[dialect]
    groups: dict[Any, list[tuple[float, _SampleField, RuleVariable]]] = {}
    for field, variable in single_levels:
        level = field.field.parameter.surfaces[0].compute_value(field.unit)
        text = variable.line.get(member, "")
        template = text.replace(f"{level:g}", "{level}", 1)
        rest = tuple(item for item in variable.line.items() if item[0] != member)
        kind = msgspec.structs.replace(variable.message, surfaces=variable.message.surfaces[1:])
        key = (field.name.level, template, rest, kind, variable.covers, variable.grid)
        groups.setdefault(key, []).append((level, field, variable))
    joined = []
    for (name, template, *_), group in groups.items():
        levels = {level: variable for level, _, variable in group}
        if len(levels) == 1 or "{level}" not in template:
            joined += [(field.name.name, variable) for _, field, variable in group]
            continue
        field, variable = group[0][1:]
        ordered = sorted(levels, reverse=name.startswith("isobaric"))
        surfaces = ((variable.message.surfaces[0][0],), *variable.message.surfaces[1:])
        message = msgspec.structs.replace(variable.message, surfaces=surfaces)
        line = {**variable.line, member: template}
        joined.append((field.name.name, msgspec.structs.replace(
            variable, line=line, message=message, level=name, levels=ordered)))  # fmt: skip
    return joined


def _choose_name(name: str, variable: RuleVariable, taken: Mapping[str, RuleVariable]) -> str:
    """Return a name that is not in ``taken``: ``name``, followed by level, time range and a number as far as needed."""
    levels = (
        [f"{value:g}" for _, value in variable.message.surfaces if value] if not variable.levels else [variable.level]
    )
    parts = [name, *levels[:1], *([variable.covers.replace(" ", "")] if variable.covers else [])]
    names = ["_".join(parts[:count]) for count in range(1, len(parts) + 1)]
    names += [f"{names[-1]}_{number}" for number in range(1, len(taken) + 2)]
    return next(candidate for candidate in names if candidate not in taken)


# Compare a rule with a run.


class Comparison(msgspec.Struct, frozen=True):
    """The differences between a rule and a run, which has ``fields`` fields of the rule.

    ``absent`` are URLs of missing sidecars, ``unnamed`` lines in sidecars that belong to no variable, and ``unfound``
    variables without a line. ``misplaced`` maps variables to texts of how a message differs from the expected field.
    """

    fields: int
    absent: tuple[str, ...]
    unnamed: tuple[str, ...]
    unfound: tuple[str, ...]
    misplaced: Mapping[str, str]

    @property
    def is_same(self) -> bool:
        """Whether no sidecar is missing, and each variable has a line and the expected message."""
        return not self.absent and not self.unfound and not self.misplaced


def compare_run(rule: Rule, run: int, resolve: Callable[[str | None], str]) -> Steps[Comparison]:
    """Compare the run with this number: read all its sidecars, and the headers of one message of each variable."""
    fields = {name: FieldChunks.make_for_comparison(rule, name, resolve) for name in rule.variables}
    places = {name: list(chunks.list_places(run)) for name, chunks in fields.items()}
    loads = {place.sidecar: place.load_sidecar(rule) for listed in places.values() for place in listed}
    answers: Sequence[Sidecar | None] = yield tuple(loads.values())
    sidecars = dict(zip(loads, answers, strict=True))
    lines = {url: sidecar.lines for url, sidecar in sidecars.items() if sidecar is not None}
    existing = {
        name: [place for place in listed if place.line in lines.get(place.sidecar, {})]
        for name, listed in places.items()
    }
    unnamed_lines = {url: set(keys) for url, keys in lines.items()}
    for listed in existing.values():
        for place in listed:
            unnamed_lines[place.sidecar].discard(place.line)
    unnamed = dict.fromkeys(" ".join(filter(None, line)) for keys in unnamed_lines.values() for line in sorted(keys))
    last_places = {name: listed[-1] for name, listed in existing.items() if listed}
    reasons = yield from run_together([
        _find_differences(fields[name], place, lines[place.sidecar][place.line][0])
        for name, place in last_places.items()
    ])  # fmt: skip
    return Comparison(
        sum(map(len, existing.values())),
        tuple(url for url, sidecar in sidecars.items() if sidecar is None),
        tuple(unnamed),
        tuple(name for name, listed in existing.items() if not listed),
        {name: reason for name, reason in zip(last_places, reasons, strict=True) if reason},
    )


def _find_differences(chunks: FieldChunks, place: FieldPlace, start: int) -> Steps[str]:
    """Describe how the message at byte ``start`` differs from the expected field; "" if it does not."""
    facts: Facts | None = yield Stat(place.url)
    if facts is None:
        return f"expected a file at {place.url}, found none"
    if facts.size is None:
        return f"{place.url}: expected a file whose size the server reports, found no size"
    try:
        grib = Grib(place.url, Span(place.url, 0, facts.size), facts.size, b"")
        yield from grib.read_windows([start])
        length = parse_length(grib.windows_at[start][:16])
        chunks.make_recipe(place).find((yield from grib.read_fields(start, length)))
    except ValueError as e:
        return str(e)
    return ""
