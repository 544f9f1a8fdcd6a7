"""Type checkers see the public interface as it is: a user's program is checked strictly, with its mistakes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import refshard_fs

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "pages" / "api.md"
PACKAGE = Path(refshard_fs.__path__[0])
CACHE = PACKAGE.parent / ".mypy_cache" / "of-users"


def test_package_has_py_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed: the extra lint brings it")
def test_program_of_a_user_passes_strict_mypy(tmp_path: Path) -> None:
    # As in a user's project: without this package's configuration, and only with the program's own errors.
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={CACHE}"]
    command = [sys.executable, "-m", "mypy", *options, str(HERE / "program.py")]
    environment = os.environ | {"MYPYPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _members(path: Path) -> set[str]:
    """Return what the classes in ``path`` declare."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    return {part.name for c in classes for part in c.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_methods_that_the_api_page_lists_are_declared() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| purpose | methods |\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    typed = _members(PACKAGE / "fs.py") | _members(PACKAGE / "source" / "async_filesystem.pyi")
    assert "transaction" in named
    assert sorted(named - typed) == []
