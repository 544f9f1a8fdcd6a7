"""Environments, and the stages that run in them; `stages.py` says which."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1500  # seconds a stage
# Hundreds of tests start processes of their own, which shall not compile everything anew.
DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
VARIABLES = {name: value for name, value in os.environ.items() if name not in DROPPED}
VARIABLES |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
VARIABLES["PIP_NO_COMPILE"] = "0"  # this is the value of `compile`: most modules that pip compiles are never imported
# Programs that only CI installs: tests of completion and of another language are skipped without these.
PROGRAMS = """
command -v zsh fish >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends zsh fish; }
npm install --silent --prefix "$REFSHARD_ZARRITA" zarrita@0.7.5 @zarrita/storage@0.2.0
"""


class Environment(NamedTuple):
    """A copy of the sources, in which ``python3`` is ``python`` and ``commands`` were run."""

    name: str
    python: str
    commands: str


class Outcome(NamedTuple):
    """The output of commands, their exit status, and the seconds that they took."""

    output: str
    status: int
    seconds: float


class Stage(NamedTuple):
    """Commands that run in an environment; ``is_beside``: beside the stages that follow, and shown at the end."""

    name: str
    environment: Environment
    commands: str
    options: str = ""  # for pytest
    is_beside: bool = False


def find_pythons(is_quick: bool) -> dict[str, str]:
    """Return a usable CPython of each version >= 3.11, ascending; ``is_quick``: the current one alone."""
    installed = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin/python3")
    known = [sys.executable, *map(str, installed), *(shutil.which(f"python3.{n}") or "" for n in range(11, 20))]
    ask = """import ensurepip, platform, sys, sysconfig
assert platform.python_implementation() == "CPython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
assert sys.version_info >= (3, 11) and sys.version_info.releaselevel == "final"
print(sys.version_info.minor)"""
    found: dict[int, str] = {}
    for path in filter(None, known[:1] if is_quick else known):
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.setdefault(int(done.stdout), path)
    return {f"3.{minor}": found[minor] for minor in sorted(found)}


def copy_sources(environment: Environment, work: Path) -> None:
    """Copy the sources to where an environment is made."""
    copy = work / environment.name
    (copy / "refshard_fs").mkdir(parents=True)
    files = "git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - 2>/dev/null"
    subprocess.run(f"{files} | tar -x -C '{copy}/refshard_fs'", shell=True, cwd=ROOT, check=True)
    if (ROOT.parent / "shared").is_dir():
        (copy / "shared").symlink_to(ROOT.parent / "shared")
    (copy / "bin").mkdir()
    (copy / "bin/python3").write_text(f'#!/bin/sh\nexec "{environment.python}" "$@"\n')
    (copy / "bin/python3").chmod(0o755)


def run(environment: Environment, work: Path, commands: str, options: str = "", *, is_shown: bool = False) -> Outcome:
    """Run ``commands`` in an environment, and return what they print, which is shown meanwhile if ``is_shown``."""
    copy, began, lines = work / environment.name, time.monotonic(), []
    script = ["timeout", str(LIMIT), "bash", "-c", f"set -euo pipefail\n{commands}"]
    variables = VARIABLES | {"PATH": f"{copy}/bin:{os.environ['PATH']}", "PYTEST_ADDOPTS": options}
    with subprocess.Popen(
        script, cwd=copy / "refshard_fs", env=variables, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        for line in process.stdout or ():
            lines.append(line)
            if is_shown:
                print(line, end="", flush=True)
    return Outcome("".join(lines), process.returncode, time.monotonic() - began)


def run_all(planned: list[Stage], work: Path) -> int:
    """Make the environments side by side, run the stages in order, and return 1 if one failed."""
    if os.environ.get("CI") == "true" and os.geteuid() == 0:
        VARIABLES["REFSHARD_ZARRITA"] = str(work / "zarrita")
        subprocess.run(["timeout", "300", "bash", "-c", PROGRAMS], env=VARIABLES, stdin=subprocess.DEVNULL, check=False)
    VARIABLES["HYPOTHESIS_STORAGE_DIRECTORY"] = str(work / "hypothesis")  # it parses the sources once for all stages
    environments = list({stage.environment.name: stage.environment for stage in planned}.values())
    for environment in environments:
        copy_sources(environment, work)
    outcomes: dict[str, Outcome] = {}
    beside: dict[str, Future[Outcome]] = {}
    with ThreadPoolExecutor(len(environments) + 1) as pool:
        outputs = pool.map(lambda each: run(each, work, each.commands), environments)
        made = {each.name: outcome for each, outcome in zip(environments, outputs, strict=True)}
        print(f"environments made after {max(outcome.seconds for outcome in made.values()):.0f} s", flush=True)
        for name, environment, commands, options, is_beside in planned:
            if made[environment.name].status:
                beside[name] = pool.submit(made.__getitem__, environment.name)
            elif is_beside:
                beside[name] = pool.submit(run, environment, work, commands, options)
            else:
                print(f"\n=== {name} ===", flush=True)
                outcomes[name] = run(environment, work, commands, options, is_shown=True)
    for name, task in beside.items():
        outcomes[name] = task.result()
        print(f"\n=== {name} ===\n{outcomes[name].output}")
    print("\n=== summary ===")
    for name, (output, status, seconds) in outcomes.items():
        counts = re.findall(r"^=* ?(\d+ (?:passed|failed|error).* in [0-9.]+s)", output, re.M)
        print(f"{name}: {f'FAILED with {status}' if status else 'ok'} after {seconds:.0f} s", *counts[-1:])
    return int(any(outcome.status for outcome in outcomes.values()))
