"""``python -m tests.fuzz NAME --inputs 1000000``: search for inputs that break a parser; see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz import driver


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(driver.list_names())}; none: all")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="run only the input with this number, in this process"
    )
    parser.add_argument("--file", type=Path, help="run only the input in this file, in this process")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="directory for failing inputs")
    parser.add_argument("--engine", choices=["own", "atheris"], default="own")
    options = parser.parse_args()
    names = options.names or driver.list_names()
    if unknown := set(names) - set(driver.list_names()):
        parser.error(f"unknown harness {', '.join(sorted(unknown))}: expected one of {', '.join(driver.list_names())}")
    if options.file is not None or options.only is not None or options.engine == "atheris":
        if len(names) != 1:
            parser.error(f"expected one NAME, found {len(names)}")
        return _alone(names[0], options)
    count = 0
    for name in names:

        def keep(failure: driver.Failure, name: str = name) -> None:
            options.failures.mkdir(parents=True, exist_ok=True)
            path = options.failures / f"{name}-{options.seed}-{failure.number}"
            path.write_bytes(failure.data)
            print(
                f"{failure.reason}\n{path} is the input; again: python -m tests.fuzz {name} --file {path}", flush=True
            )

        count += len(driver.run(name, options.inputs, options.seed, lambda text: print(text, flush=True), keep))
    return 1 if count else 0


def _alone(name: str, options: argparse.Namespace) -> int:
    if options.engine == "atheris":
        return _atheris(name, options)
    harness = driver.load_harness(name)
    data = options.file.read_bytes() if options.file else driver.make_mutator(harness, options.seed).input(options.only)
    with harness.set_up():
        harness.check_input(data)
    print(f"the input of {len(data)} bytes passes")
    return 0


def _atheris(name: str, options: argparse.Namespace) -> int:
    """Search by coverage of our own code, beginning with the seeds; write the corpus to the folder of failures."""
    import atheris  # type: ignore[import-untyped, unused-ignore]  # and not required: only some interpreters have it

    corpus = options.failures / f"{name}-corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=["refshard_fs"]):
        harness = driver.load_harness(name)
        seeds = harness.make_seeds()
    for number, data in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(data)
    with harness.set_up():
        for data in seeds:
            harness.check_input(data)
        limits = ["-timeout=1", "-rss_limit_mb=1024", "-max_len=65536", f"-artifact_prefix={options.failures}/{name}-"]
        atheris.Setup(
            [sys.argv[0], f"-runs={options.inputs}", f"-seed={options.seed}", *limits, str(corpus)], harness.check_input
        )
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
