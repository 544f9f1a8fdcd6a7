"""A plan of reads: a list that prints as a table of requests; notebooks show a table of HTML."""

from __future__ import annotations

from typing import Final

from refshard_fs.core.stats import format_bytes, format_count
from refshard_fs.errors import sanitize
from refshard_fs.reading.plan import PlannedRequest
from refshard_fs.tools.views import render_table, render_view

REQUESTS: Final = 20  # the most requests of a plan that are shown


class Plan(list[PlannedRequest]):
    """The requests that a read would send, target by target: a list that prints as a table.

    >>> first = PlannedRequest("s3://b/x.nc", 0, 2000, ("a/0", "a/1"))
    >>> Plan([first, PlannedRequest("s3://b/y.nc", 9000, 9100, ("a/2",))])
    2 requests for 3 keys of 2 targets: 2.1 KiB
    s3://b/x.nc
          0 to 2,000  2.0 KiB  a/0 and 1 more
    s3://b/y.nc
      9,000 to 9,100    100 B  a/2
    """

    def __repr__(self) -> str:
        rows = [_make_row(request) for request in self[:REQUESTS]]
        wide = [max((len(row[place]) for row in rows), default=0) for place in (1, 2)]
        lines, before = [self._render_summary()], ""
        for target, span, size, keys in rows:
            if target != before:
                lines.append(target)
            lines.append(f"  {span:>{wide[0]}}  {size:>{wide[1]}}  {keys}")
            before = target
        return "\n".join([*lines, f"and {len(self) - REQUESTS:,} more"] if len(self) > REQUESTS else lines)

    def _repr_html_(self) -> str:
        heading = ("target", "bytes", "size", "keys")
        return render_view(
            "Planned requests",
            self._render_summary(),
            render_table(heading, map(_make_row, self[:REQUESTS]), right=heading[1:3], total=len(self)),
        )

    def _render_summary(self) -> str:
        """Return in one line how much is requested."""
        if not self:
            return "no request: the source itself has all bytes"
        keys = {key for request in self for key in request.keys}
        targets = {request.url for request in self}
        known = [request.stop - request.start for request in self if request.stop is not None]
        sizes = [format_bytes(sum(known))] if known else []
        if len(known) < len(self):
            sizes.append(f"{len(self) - len(known):,} of unknown size")
        requests, served = format_count(len(self), "request"), format_count(len(keys), "key")
        return f"{requests} for {served} of {format_count(len(targets), 'target')}: {' and '.join(sizes)}"


def _make_row(request: PlannedRequest) -> tuple[str, str, str, str]:
    """Return a row of a plan: the target, the byte range in it, the size of the range, and the keys that it serves."""
    url, start, stop, keys = request
    first = sanitize(keys[0]) if keys else ""
    return (
        sanitize(url),
        f"{start:,} to the end" if stop is None else f"{start:,} to {stop:,}",
        "" if stop is None else format_bytes(stop - start),
        f"{first} and {len(keys) - 1:,} more" if len(keys) > 1 else first,
    )
