"""The command ``hpcenv-stage``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcenv.base import record
from hpcenv.runtime.console import run_ranks, show
from hpcenv.runtime.ranks import Ranks


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="hpcenv-stage",
        description="Bring data to the nodes, reading each byte of the source once.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    copy = commands.add_parser(
        "copy",
        help="copy a folder to every node",
        description="Start it under a launcher, on all ranks: every node gets one copy, which "
        "appears whole or not at all. Started again after an interruption it reads only what is "
        "missing. Exit status: 0 done, 2 bad input, 3 something outside failed.",
    )
    copy.add_argument("source", metavar="SRC", type=Path, help="a folder that every rank sees")
    copy.add_argument("target", metavar="DST", type=Path, help="where each node's copy is to lie")
    copy.add_argument("--json", action="store_true", help="print the result as JSON")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = parser().parse_args(arguments)
    return run_ranks("hpcenv-stage", lambda ranks: _copy(given, ranks))


def _copy(given: argparse.Namespace, ranks: Ranks) -> int:
    from hpcenv.runtime.stage.copy import copy
    from hpcenv.runtime.stage.words import words

    copied = copy(given.source, given.target, ranks)
    if ranks.rank == 0:
        show(record.dump_json(copied) if given.json else words(copied))
    ranks.barrier()
    return 0


if __name__ == "__main__":
    sys.exit(main())
