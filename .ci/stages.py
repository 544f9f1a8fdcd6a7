"""Run everything that must hold before a change lands. All stages run; one failure fails the run.

    .ci/run            every stage of the table in `stages`
    .ci/run --quick    the tests on the current Python, types and style, the documentation

Each environment is a copy of the sources with its own virtual environment. The README's commands make the environments
of the ordinary tests and of the quickstart.
"""

import ast
import configparser
import re
import sys
import tempfile
from functools import cache
from pathlib import Path

from running import ROOT, Environment, Stage, find_pythons, run_all

README = [block.strip() for block in re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)]
# The commands that make an environment, and the command that runs in it.
QUICKSTART, QUICKSTART_RUN = README[0].rsplit(" && ", 1)
TESTS, TESTS_RUN = README[1].rsplit(" && ", 1)
PIP, PYTEST = ".venv-test/bin/pip install -q", ".venv-test/bin/python -m pytest -n 3"
ORDINARY = "not slow and not soak and not fuzz"
OTHERS = "zarr|xarray|numcodecs|dask|kerchunk|virtualizarr"  # packages of other versions with zarr 2
PEERS = f"fsspec|{OTHERS}"
VERSIONS = f".venv-test/bin/pip list 2>/dev/null | grep -iE '^({PEERS}) '"
COMPUTING = (  # run with the oldest and the newest Python only
    *("benchmarks", "cli", "core", "cubes", "formats", "references", "sets", "sharding", "sinks", "source", "tools"),
    *("writing", "test_corpus.py", "test_differential.py", "test_direct_array.py", "test_examples.py"),
    *("test_unpacking.py", "test_virtualizarr.py", "test_xarray_reading.py", "test_xarray_store.py"),
)
CONNECTING = ("security", "servers", "stores", "targets")  # tests without zarr, which run with old peers, too
READING = ("jinja", "parquet", "xarray", "zarr")  # extras whose packages run in their oldest versions, too
OLD = ("fsspec", "numcodecs", "zarr")  # the stage fails unless pip has installed the oldest versions of these
LINT = f"""
{PIP} -e '.[lint]'
.venv-test/bin/mypy --strict refshard_fs
.venv-test/bin/mypy --strict --config-file= --follow-imports=silent tests/typed/program.py
.venv-test/bin/ruff check .
.venv-test/bin/ruff format --check .
"""
DOCUMENTATION = f"""
{PIP} -e '.[docs]'
NO_MKDOCS_2_WARNING=1 .venv-test/bin/mkdocs build -q --strict -f docs/mkdocs.yml
.venv-test/bin/python docs/searched.py docs/site
"""
BENCHMARKS = f"""
{PIP} -e '.[bench]'
.venv-test/bin/python -m benchmarks --quick --report report
grep -q '<svg' report/report.html
"""
WHEEL = r"""
python3 -m venv .venv && .venv/bin/pip wheel -q --no-deps -w dist .
[[ $(ls dist) == refshard_fs-*-py3-none-any.whl ]]
.venv/bin/python -m zipfile -l dist/*.whl >contents
for file in $(find refshard_fs -type f ! -path '*/__pycache__/*'); do grep -qF "$file " contents; done
.venv/bin/pip install -q dist/*.whl && mkdir elsewhere && cd elsewhere
printf '{"version": 1, "refs": {"a/0": "hello"}}' >refs.json
../.venv/bin/refshard ls refs.json
../.venv/bin/python -c 'import fsspec; assert fsspec.filesystem("refshard", fo="refs.json").cat("a/0") == b"hello"'
"""


def stages(pythons: dict[str, str], is_quick: bool) -> list[Stage]:
    """Return all stages, in order; ``pythons`` are interpreters by version, ascending."""
    tests = {version: Environment(f"python-{version}", path, TESTS) for version, path in pythons.items()}
    (oldest, path), newest = next(iter(pythons.items())), next(reversed(pythons))
    found = []
    for version, environment in tests.items():
        # Tests marked `once` are the same everywhere; a version between two others makes no difference to computing.
        options = f"-m '{ORDINARY}'" if version == newest else f"-m '{ORDINARY} and not once'"
        between = ignore(COMPUTING) if version not in (oldest, newest) else ""
        found.append(Stage(f"tests-{version}", environment, f"{TESTS_RUN}\n{VERSIONS}", options + between))
    last = [Stage("lint", tests[oldest], LINT), Stage("documentation", tests[oldest], DOCUMENTATION)]
    if is_quick:
        return found + last
    zarr2 = Environment("zarr-2", path, f"python3 -m venv .venv-test && {PIP} -e '.[test-zarr2]'")
    make = f"echo '{' '.join(oldest_pins())}' | tr ' ' '\\n' >oldest.txt; python3 -m venv .venv-test"
    old = Environment("old-peers", path, f"{make}; {PIP} -c oldest.txt -e '.[testing,xarray]'")
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    # Modules that import no package of another version ran with the same packages on the oldest Python.
    reading = name_files([one for one in modules if one.parts[-2] not in CONNECTING and imports_others(one)])
    # Old codecs load pickles, and old clients have faults: each promise is tested with the oldest versions, too.
    promises = name_files([path for path in modules if "pytest.mark.case(" in path.read_text()])
    check = [f".venv-test/bin/pip freeze | grep -E '^{pin}'" for pin in oldest_pins() if pin.split("=")[0] in OLD]
    with_old = "\n".join([f"{PYTEST} tests/security tests/targets {promises}", *check])
    return [
        *found,
        Stage("benchmarks", tests[newest], BENCHMARKS, is_beside=oldest != newest),
        Stage("tests-zarr-2", zarr2, f"{PYTEST} {reading}\n{VERSIONS}", f"-m '{ORDINARY} and not once'"),
        Stage("tests-old-peers", old, with_old),
        *last,
        Stage("quickstart", Environment("quickstart", path, QUICKSTART), f"{QUICKSTART_RUN}\ntest -s quickstart.png"),
        Stage("wheel", Environment("wheel", path, ""), WHEEL),
    ]


def ignore(names: tuple[str, ...]) -> str:
    """Return options of pytest that leave folders and modules of tests out."""
    return "".join(f" --ignore=tests/{name}" for name in names)


def name_files(paths: list[Path]) -> str:
    """Return paths in the sources as arguments of a command."""
    return " ".join(str(path.relative_to(ROOT)) for path in paths)


@cache
def imports_others(path: Path) -> bool:
    """Return whether a file, or a helper of the tests that it imports, imports one of `OTHERS`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{alias.name}" for alias in names)}
            case ast.Call(func=ast.Attribute(attr="importorskip"), args=[argument, *_]):
                found.add(str(argument.value) if isinstance(argument, ast.Constant) else "zarr")
    helpers = [ROOT / f"{name.replace('.', '/')}.py" for name in found if name.startswith("tests.")]
    if any(re.match(rf"({OTHERS})\b", name) for name in found):
        return True
    return any(imports_others(helper) for helper in helpers if helper.is_file())


def oldest_pins() -> list[str]:
    """Return pins of the required packages, and those of `READING`, to their oldest versions in setup.cfg."""
    config = configparser.RawConfigParser()
    config.read(ROOT / "setup.cfg")
    needs = [config["options"]["install_requires"], *(config["options.extras_require"][extra] for extra in READING)]
    found = re.findall(r"^([\w.-]+)>=([0-9.]+)", "\n".join(needs), re.M)
    return [f"{name}=={version}.*" for name, version in found]


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--quick"]):
        sys.exit("usage: .ci/run [--quick]")
    quick = sys.argv[1:] == ["--quick"]
    pythons = find_pythons(quick)
    print("interpreters:", *pythons.items(), sep="\n  ", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(run_all(stages(pythons, quick), Path(folder)))
