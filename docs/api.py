"""Renew the tables in the page of the API, from docstrings, which are read and not run: ``python docs/api.py``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "pages" / "api.md"
HEAD = "| name | purpose |\n|---|---|\n"
# The table of a block, if the page has it yet, and the block: lines for which mkdocstrings shows docstrings.
_ENTRY = r"::: refshard_fs\.[\w.]+\n(?:    .*\n)*\n*"
_BLOCK = re.compile(rf"(?:{re.escape(HEAD)}(?:\|.*\n)*\n)?((?:{_ENTRY})+)")
SAME = {"cube": "Another name of `refshard_fs.open`."}  # names that are not defined by `def` or `class`


def make_page() -> str:
    """Return the page, as Markdown: the page as it is, with new tables."""
    tree = _parse("refshard_fs.__init__")
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: node.module or "" for node in imports for alias in node.names}
    return _BLOCK.sub(lambda match: _table(match[1], modules) + match[1], PAGE.read_text(encoding="utf-8"))


def _table(block: str, modules: dict[str, str]) -> str:
    rows = []
    for name, options in re.findall(r"^::: refshard_fs\.(.+)\n((?:    .*\n)*)", block, re.MULTILINE):
        if name in SAME:
            rows.append((f"refshard_fs.{name}", SAME[name]))
            continue
        module, _, last = name.rpartition(".")
        thing = _find(last, f"refshard_fs.{module}" if module else modules[name])
        rows.append((f"refshard_fs.{name}", _first_line(thing)))
        if isinstance(thing, ast.ClassDef) and "members: false" not in options:
            rows += [(f"{last}.{member.name}", _first_line(member)) for member in _members(thing)]
    return HEAD + "".join(f"| `{name}` | {line} |\n" for name, line in rows) + "\n"


def _parse(module: str) -> ast.Module:
    return ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


def _find(name: str, module: str) -> ast.FunctionDef | ast.ClassDef:
    """Return the definition of a name; of overloads, the last one, which has the docstring."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node for node in _parse(module).body if isinstance(node, kinds) and node.name == name][-1]


def _members(thing: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the public methods and properties that a class defines with a docstring."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in thing.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return [function for function in functions if ast.get_docstring(function)]


def _first_line(thing: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    first, *_ = (ast.get_docstring(thing) or "").split("\n")
    return first.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
