"""Hooks of mkdocs that add the Markdown files at the top of the repository as pages, with links that work there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "FORMATS.md": "FORMATS.md",
    "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}

_formats = runpy.run_path(str(ROOT / "docs" / "formats.py"))
FORMATS: dict[str, tuple[str, str]] = _formats["make_pages"]()
ANCHORS: dict[str, str] = _formats["make_links"](FORMATS)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the page of each format below the page of all formats in the navigation."""
    below: list[Any] = [{title: _formats["file_name_of"](name)} for name, (title, _) in FORMATS.items()]
    (reference,) = (part["Reference"] for part in config.nav or [] if "Reference" in part)
    for part in reference:
        if "Formats" in part:
            part["Formats"] = [{"All of them": "FORMATS.md"}, *below]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the Markdown files at the top of the repository, a page for each format, and the pictures in docs."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    listed = "".join(f"- [{title}]({_formats['file_name_of'](name)})\n" for name, (title, _) in FORMATS.items())
    intro = (ROOT / "FORMATS.md").read_text(encoding="utf-8").partition("\n## ")[0]
    files.remove(files.src_uris["FORMATS.md"])
    files.append(File.generated(config, "FORMATS.md", content=f"{intro}\n{listed}"))
    for name, (_, text) in FORMATS.items():
        files.append(File.generated(config, _formats["file_name_of"](name), content=text))
    for picture in (ROOT / "docs").glob("*.svg"):
        files.append(File.generated(config, picture.name, content=picture.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to files of the repository to links to pages of the site, where all pages lie in one folder.

    A link to a section of FORMATS.md becomes a link to the page of that format.
    """
    markdown = re.sub(r"(\]\(|src=\")(?:docs/pages/|docs/|\.\./\.\./)", r"\1", markdown)
    of_formats = r"FORMATS\.md#" if not page.file.src_uri.startswith("format_") else r"(?:FORMATS\.md)?#"
    markdown = re.sub(rf"\]\({of_formats}([\w-]+)\)", lambda found: f"]({ANCHORS[found[1]]})", markdown)
    for name, target in PAGES.items():
        markdown = markdown.replace(f"]({name}", f"]({target}")
    return markdown


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Allow line breaks within long code in tables, such as paths, so that the tables are not too wide."""
    return re.sub(
        r"<td>.*?</td>", lambda cell: re.sub(r"<code>[^<]{30,}</code>", _allow_breaks, cell[0]), html, flags=re.DOTALL
    )


def _allow_breaks(code: re.Match[str]) -> str:
    return (
        "<code>" + re.sub(r"(::|[/_])", r"\1<wbr>", code[0].removeprefix("<code>").removesuffix("</code>")) + "</code>"
    )
