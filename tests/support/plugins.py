"""Run programs with the small plug-in installed, and write a file of its format."""

from __future__ import annotations

import subprocess
from pathlib import Path

PLUGIN = Path(__file__).parents[1] / "plugin/tiny_plugin.py"


ENTRY_POINTS = """\
[refshard.formats]
tiny = tiny_plugin:FORMAT
[refshard.shards]
paired = tiny_plugin:SHARD_FORMAT
[refshard.sinks]
lines = tiny_plugin:LINES
"""


def run(python: list[str], program: str, *folders: Path, of: Path) -> str:
    """Run ``program`` in a process of `fast_python` that imports packages from ``folders``; return its output."""
    program = f"import sys\nsys.path[:0] = {[*map(str, folders)]}\n{program}"
    found = subprocess.run([*python, "-c", program, str(of)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


OPEN = """
import sys
from refshard_fs.fs import RefShardFileSystem
fs = RefShardFileSystem(sys.argv[1])
"""


def write_tiny(file: Path, chunks: bytes) -> Path:
    """Write a file of the plug-in's format, with four bytes in each chunk."""
    file.write_bytes(b"TINY" + (len(chunks) // 4).to_bytes(4, "little") + chunks)
    return file
