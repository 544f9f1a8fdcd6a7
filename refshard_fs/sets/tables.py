"""Parse sources that come with their places: pairs, rows of a table, items of a STAC catalogue. No I/O here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.security.admission import Admission, is_trusted, origin_of
from refshard_fs.security.policy import directory_of, resolve
from refshard_fs.sets.patterns import FileCoordinate

DATA: Final = "data"  # the role of assets of STAC that are the data themselves
URLS: Final = ("url", "href", "uri", "path", "location")  # columns of a table that may hold URLs


def parse_placed_sources(
    sets: Any, assets: Sequence[str] | None = None
) -> list[tuple[str, dict[str, FileCoordinate]]] | None:
    """Return URLs with their places by dimension, which may be none; None if ``sets`` is not such a table.

    A table is a sequence of pairs ``(url, {"time": ..., "band": ...})``, a DataFrame with a column of URLs, or items of
    STAC (of pystac, or as JSON), each with its ``datetime`` as ``time`` and its assets along ``asset``: those that
    ``assets`` names, or else those with the role "data", or all if none has it. ValueError if rows have different
    dimensions, or a DataFrame has no rows.
    """
    rows = list(_parse_rows(sets, assets))
    if not rows and hasattr(sets, "columns"):
        raise ValueError("expected a table with at least one row, got a table without rows")
    if not rows:
        return None
    dims = rows[0][1].keys()
    for url, places in rows:
        if places.keys() != dims:
            raise ValueError(
                f"{url!r} comes with {', '.join(places) or 'no dimension'}, and {rows[0][0]!r} with "
                f"{', '.join(dims) or 'no dimension'}: expected the same dimensions with each URL"
            )
    return [(url, {dim: convert_to_place(value, dim, url) for dim, value in places.items()}) for url, places in rows]


def read_parquet_table(data: bytes, where: str, dims: Sequence[str] | None) -> list[Any]:
    """Return the rows of a Parquet file: URLs with their places along ``dims``, or items of STAC (stac-geoparquet).

    Without ``dims``, all columns of times, numbers and texts except the URLs are dimensions.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as e:
        raise ImportError(f'{where} is a Parquet file: pip install "refshard_fs[parquet]"') from e
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(data))
    names = table.column_names
    if names and not table.num_rows:
        raise ValueError(f"{where} is a table without rows: expected the URL of a source in each row")
    if "assets" in names:
        times = [name for name in ("datetime", "start_datetime") if name in names]
        return [
            {
                "type": "Feature",
                "properties": {name: row[name].isoformat() for name in times if row[name] is not None},
                "assets": {name: asset for name, asset in row["assets"].items() if asset is not None},
            }
            for row in table.select([*times, "assets"]).to_pylist()
        ]
    column = _find_url_column(names, where)
    is_place = (pyarrow.types.is_temporal, pyarrow.types.is_integer, pyarrow.types.is_floating)
    is_text = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_dictionary)
    columns = [f.name for f in table.schema if f.name != column and any(is_(f.type) for is_ in (*is_place, *is_text))]
    unknown = set(dims or ()).difference(columns)
    if unknown:
        raise ValueError(f"{where} lacks the columns {', '.join(sorted(unknown))}: it has {', '.join(columns)}")
    return [(row.pop(column), row) for row in table.select([column, *(dims or columns)]).to_pylist()]


def adopt_rows(
    rows: Sequence[Any], table: str, rule: Admission, assets: Sequence[str] | None = None
) -> list[tuple[str, dict[str, FileCoordinate]]]:
    """Return the rows of the ``table`` at a URL as pairs; TargetNotAllowed if ``rule`` refuses the URL of a row.

    The sources of a cube are the user's own, but the author of the table has chosen their URLs. In a table from
    elsewhere, relative URLs start at the directory of the table.
    """
    base = None if is_trusted(table) else directory_of(table)
    pairs = [(resolve(url, base, None), places) for url, places in parse_placed_sources(rows, assets) or ()]
    for url, _ in pairs:
        rule.check_adoption(url)
    return pairs


def move_credentials(urls: Sequence[str], table: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` with which credentials for a ``table`` on a server go to no ``urls`` on other servers."""
    name = "target_options" if options.get("ref_storage_args") is None else "ref_storage_args"
    credentials = options.get(name)
    if not credentials or is_trusted(table):
        return dict(options)
    own = {url: credentials for url in urls if origin_of(url) == origin_of(table)}
    kept = {key: value for key, value in options.items() if key not in ("ref_storage_args", "target_options")}
    return {**kept, "options": {**own, **(options.get("options") or {})}}


def _find_url_column(names: Sequence[str], where: str) -> str:
    column = next((name for name in URLS if name in names), None)
    if column is None:
        found = f"the columns {', '.join(names)}" if names else "no columns"
        raise ValueError(f"{where} has {found}: expected one of {', '.join(URLS)}")
    return column


def _parse_rows(sets: Any, assets: Sequence[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    if hasattr(sets, "columns") and hasattr(sets, "to_dict"):
        column = _find_url_column([str(name) for name in sets.columns], "the table")
        for row in sets.to_dict("records"):
            yield str(row.pop(column)), row
        return
    if isinstance(sets, Mapping) and sets.get("type") == "FeatureCollection":
        sets = sets["features"]
    elif isinstance(sets, str | bytes | os.PathLike | Mapping) or not isinstance(sets, Sequence):
        sets = getattr(sets, "items", None)  # the items of an ItemCollection
    if not isinstance(sets, Sequence):
        return
    items = [_parse_item(member) for member in sets]
    if items and all(item is not None for item in items):
        chosen = [(item, _choose_assets(item, assets)) for item in items if item is not None]
        has_several = any(len(names) > 1 for _, names in chosen)
        for item, names in chosen:
            if not names:
                wanted = "assets" if assets is None else f"one of the assets {', '.join(assets)}"
                raise ValueError(
                    f"expected {wanted} in each item, got an item with {', '.join(item.hrefs) or 'no assets'}"
                )
            if item.time is None:
                raise ValueError(
                    f"expected the property datetime or start_datetime in each item, got the item of "
                    f"{item.hrefs[names[0]]!r} without them"
                )
            for name in names:
                yield item.hrefs[name], {"time": item.time, **({"asset": name} if has_several else {})}
        return
    for member in sets:
        match member:
            case (str() | os.PathLike() as url, Mapping() as places):
                yield os.fspath(url), {str(dim): value for dim, value in places.items()}
            case _:
                return


class _Item(NamedTuple):
    """An item of STAC: its time, the URLs of its assets by name, and the assets with the role "data"."""

    time: Any
    hrefs: dict[str, str]
    data: list[str]


def _parse_item(item: Any) -> _Item | None:
    """Return an item of STAC; None for anything else."""
    if isinstance(item, Mapping):
        if item.get("type") != "Feature" or "assets" not in item:
            return None
        properties = item.get("properties") or {}
        when = properties.get("datetime") or properties.get("start_datetime")
        assets = item["assets"].items()
        data = [name for name, asset in assets if DATA in (asset.get("roles") or ())]
        without = [name for name, asset in assets if "href" not in asset]
        if without:
            raise ValueError(f"expected href in each asset of an item, got the asset {without[0]!r} without it")
        return _Item(when, {name: str(asset["href"]) for name, asset in assets}, data)
    if not (hasattr(item, "assets") and hasattr(item, "properties")):
        return None
    when = getattr(item, "datetime", None) or item.properties.get("start_datetime")
    data = [name for name, asset in item.assets.items() if DATA in (asset.roles or ())]
    return _Item(when, {name: str(asset.href) for name, asset in item.assets.items()}, data)


def _choose_assets(item: _Item, assets: Sequence[str] | None) -> list[str]:
    """Return the names of the assets to take; thumbnails and metadata have other roles than "data"."""
    if assets is not None:
        assets = [assets] if isinstance(assets, str) else assets
        return [name for name in item.hrefs if name in assets]
    return item.data or list(item.hrefs)


def convert_to_place(value: Any, dim: str, url: str) -> FileCoordinate:
    """Convert a value of a dimension to a `FileCoordinate`: a time with a time zone, a number or a text.

    ValueError, which names ``url``, for any other value.
    """
    if isinstance(value, np.datetime64):
        value = value.astype("M8[us]").item()
    elif hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime(warn=False)
    if isinstance(value, str) and dim == "time":
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            expected = "expected a time such as '2024-01-31T12:00'"
            raise ValueError(f"{url!r} comes with {dim} = {value!r}: {expected}") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, str):
        return value
    raise ValueError(f"{url!r} comes with {dim} = {value!r}: expected a time, a number or a text")
