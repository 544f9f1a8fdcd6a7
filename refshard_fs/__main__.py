"""Run the command ``refshard`` as ``python -m refshard_fs``, which works also if its script is not on the PATH."""

from refshard_fs.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
