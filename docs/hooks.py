"""The Markdown files at the top of the repository as pages of the site, with their links as they are there."""

from __future__ import annotations

import re
from pathlib import Path

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


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files, and the pictures in them."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for picture in (ROOT / "docs").glob("*.svg"):
        files.append(File.generated(config, picture.name, content=picture.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links within the repository links within the site: all pages lie in one folder here."""
    markdown = re.sub(r"\]\((?:docs/pages/|docs/|\.\./\.\./)", "](", markdown)
    for name, target in PAGES.items():
        markdown = markdown.replace(f"]({name}", f"]({target}")
    return markdown
