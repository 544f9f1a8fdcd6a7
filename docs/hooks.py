"""The Markdown files at the top of the repository as pages of the site, with their links as they are there."""

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
FORMATS: dict[str, tuple[str, str]] = _formats["sections"]()
ANCHORS: dict[str, str] = _formats["anchors"](FORMATS)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let the page of formats be followed by one for each."""
    below: list[Any] = [{title: _formats["page"](name)} for name, (title, _) in FORMATS.items()]
    (reference,) = (part["Reference"] for part in config.nav or [] if "Reference" in part)
    for part in reference:
        if "Formats" in part:
            part["Formats"] = [{"All of them": "FORMATS.md"}, *below]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files, and the pictures in them."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    listed = "".join(f"- [{title}]({_formats['page'](name)})\n" for name, (title, _) in FORMATS.items())
    intro = (ROOT / "FORMATS.md").read_text(encoding="utf-8").partition("\n## ")[0]
    files.remove(files.src_uris["FORMATS.md"])
    files.append(File.generated(config, "FORMATS.md", content=f"{intro}\n{listed}"))
    for name, (_, text) in FORMATS.items():
        files.append(File.generated(config, _formats["page"](name), content=text))
    for picture in (ROOT / "docs").glob("*.svg"):
        files.append(File.generated(config, picture.name, content=picture.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links within the repository links within the site: all pages lie in one folder, each format in its own."""
    markdown = re.sub(r"(\]\(|src=\")(?:docs/pages/|docs/|\.\./\.\./)", r"\1", markdown)
    of_formats = r"FORMATS\.md#" if not page.file.src_uri.startswith("format_") else r"(?:FORMATS\.md)?#"
    markdown = re.sub(rf"\]\({of_formats}([\w-]+)\)", lambda found: f"]({ANCHORS[found[1]]})", markdown)
    for name, target in PAGES.items():
        markdown = markdown.replace(f"]({name}", f"]({target}")
    return markdown


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let long names in tables, as those of tests are, go on in the next line instead of making the table too wide."""
    return re.sub(
        r"<td>.*?</td>", lambda cell: re.sub(r"<code>[^<]{30,}</code>", _breaking, cell[0]), html, flags=re.DOTALL
    )


def _breaking(code: re.Match[str]) -> str:
    return (
        "<code>" + re.sub(r"(::|[/_])", r"\1<wbr>", code[0].removeprefix("<code>").removesuffix("</code>")) + "</code>"
    )
