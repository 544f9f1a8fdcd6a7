"""Make one of each view that a notebook shows, and parse the HTML of a view."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import refshard_fs
from refshard_fs import RefShardFileSystem

META = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0}


ARRAY = json.dumps(META | {"filters": None, "compressor": None})


def name_days(count: int, folder: Path) -> list[str]:
    meta = json.dumps(json.loads(ARRAY) | {"shape": [2, 3], "chunks": [1, 3]})
    for n in range(count):
        refs = {"<air>/.zarray": meta, "<air>/.zattrs": '{"_ARRAY_DIMENSIONS": ["<time>", "x"]}'}
        RefShardFileSystem({**refs, "<air>/0.0": [f"s3://b/{n}.nc", 0, 3]}).save(str(folder / f"{n}.json"))
    return [str(folder / f"{n}.json") for n in range(count)]


def make_views(folder: Path) -> dict[str, Any]:
    sets = name_days(12, folder)
    fs = RefShardFileSystem(sets[0])
    fs.ls("")
    return {
        "filesystem": fs,
        "concat": refshard_fs.concat(sets, "<time>"),
        "lazy": refshard_fs.concat(sets, "<time>", lazy=True),
        "check": refshard_fs.check(RefShardFileSystem({"<a>/.zarray": ARRAY, "<a>/7": "x"})),
        "stats": fs.stats(),
        "plan": fs.plan(["<air>/0.0", "<air>/0.0"]),
    }


def check_html(html: str) -> str:
    ElementTree.fromstring(html)
    return html


class Structure(HTMLParser):
    """The structure of a view: its tables as rows of cells, the summaries of its details, and other text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.tables: list[list[list[str]]] = []
        self.summaries: list[str] = []
        self.open_details = 0
        self._inside = ""
        self.feed(check_html(html))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open_details += tag == "details" and any(name == "open" for name, _ in attrs)
        self._inside = tag
        match tag:
            case "table":
                self.tables.append([])
            case "tr":
                self.tables[-1].append([])
            case "td" | "th":
                self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        if self._inside in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif self._inside == "summary":
            self.summaries.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""
