"""Make a page for each format from a section of FORMATS.md or docs/pages/stores.md, or a row of docs/pages/files.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHOLE = "FORMATS.md"
# Each registered format, and the slug of its page.
OF = {
    "bcolz": "bcolz-and-bloscpack",
    "bloscpack": "bcolz-and-bloscpack",
    "cdf": "cdf",
    "chunk-manifest-json": "chunk-manifests",
    "dmrpp": "dmr",
    "fits": "fits",
    "grib2": "grib",
    "grib-rule": "archives-of-forecasts-by-rule",
    "hdf4": "hdf4-hdf-eos2",
    "hdf5": "netcdf-4-hdf5",
    "icechunk": "icechunk",
    "jp2": "jpeg-2000",
    "kerchunk-json": "json-sets-of-references",
    "kerchunk-parquet": "parquet-sets-of-references",
    "netcdf3": "netcdf-3",
    "n5": "n5-hierarchies",
    "neuroglancer-precomputed": "neuroglancer-precomputed-volumes",
    "refshard-concat": "sets-joined-lazily",
    "safe": "jpeg-2000",
    "tiff": "tiff",
    "zarr-hierarchy": "zarr-hierarchies",
    "zip": "zip",
}


def make_slug(heading: str) -> str:
    """Return the anchor of a heading, as Markdown computes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-")


def make_pages() -> dict[str, tuple[str, str]]:
    """Return the title and the Markdown of each page, by the slug of the page."""
    stores = ROOT / "docs" / "pages" / "stores.md"
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / WHOLE, stores)]
    parts = [part for text in texts for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]]
    found: dict[str, tuple[str, str]] = {}
    for part in parts:
        title, _, text = part.partition("\n")
        found[make_slug(title)] = title, f"# {title}\n{re.sub('^###', '##', text, flags=re.MULTILINE)}"
    return found | _make_pages_of_files()


def _make_pages_of_files() -> dict[str, tuple[str, str]]:
    """Return the title and the Markdown of a page for each row of the table in files.md, by slug."""
    text = (ROOT / "docs" / "pages" / "files.md").read_text(encoding="utf-8")
    intro, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    more = {make_slug(part.partition("\n")[0]): part.partition("\n")[2] for part in parts}
    head, _, rows = intro.partition("|---|---|---|---|\n")
    names = [name.strip() for name in head.rstrip().rpartition("\n")[2].strip("| ").split("|")]
    found: dict[str, tuple[str, str]] = {}
    for row in re.findall(r"^\| (.+) \|$", rows, flags=re.MULTILINE):
        what, *cells = [cell.strip() for cell in row.split(" | ", len(names) - 1)]
        title = re.split(r" \(|, BigTIFF", what)[0]
        paragraphs = [
            f"**{name.capitalize()}**: {cell.strip(' |')}.\n"
            for name, cell in zip(names[1:], cells, strict=False)
            if cell.strip(" |")
        ]
        lines = [
            f"# {title}\n",
            f"{what}: see also [all files of arrays](files.md).\n",
            *paragraphs,
            more.get(make_slug(title), ""),
        ]
        found[make_slug(title)] = title, "\n".join(lines)
    return found


def make_links(pages: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Return a link for the slug of each heading: the page, or the page and an anchor on it."""
    found: dict[str, str] = {}
    for name, (_, text) in pages.items():
        found[name] = file_name_of(name)
        for heading in re.findall(r"^##+ (.+)$", text, flags=re.MULTILINE):
            found.setdefault(make_slug(heading), f"{file_name_of(name)}#{make_slug(heading)}")
    return found


def file_name_of(name: str) -> str:
    """Return the file name of the page with the slug ``name``."""
    return f"format_{name}.md"
