"""The command ``hpcenv-train``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcenv.base import record
from hpcenv.base.errors import Failure
from hpcenv.runtime.console import run_ranks, say, show
from hpcenv.runtime.ranks import Ranks, together


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="hpcenv-train", description="Train on one rank or many, with Horovod or mpi4py."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="train; the same command goes on where an earlier one stopped",
        description="Train under a launcher: mpirun -n 2 hpcenv-train run digits. "
        "Exit status: 0 finished, 75 asked to stop and saved, 1 the ranks drifted apart, "
        "2 bad input, 3 something outside failed.",
    )
    run.add_argument("config", metavar="CONFIG", help="a TOML file, or a name: see describe")
    run.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a setting: --set epochs=3 --set optimizer.momentum=0.8",
    )
    run.add_argument("-o", dest="folder", metavar="DIR", type=Path, help="default: runs/NAME")
    run.add_argument("--fresh", action="store_true", help="put an earlier run aside and begin anew")

    commands.add_parser("describe", help="print what this runtime is and can do, as JSON")

    report = commands.add_parser("report", help="sum up a run from its log")
    report.add_argument("folder", metavar="DIR", type=Path)
    report.add_argument("--json", action="store_true", help="as JSON")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = parser().parse_args(arguments)
    if given.command == "run":
        return run_ranks("hpcenv-train", lambda ranks: _run(given, ranks))
    try:
        if given.command == "describe":
            from hpcenv.runtime.train.describe import describe

            show(record.dump_json(describe()))
        else:
            from hpcenv.runtime.train.report import report, words

            found = report(given.folder)
            show(record.dump_json(found) if given.json else words(found, given.folder))
    except Failure as failure:
        say(f"hpcenv-train: {failure}")
        return failure.status
    return 0


def _run(given: argparse.Namespace, ranks: Ranks) -> int:
    from hpcenv.runtime.train.run import default_folder, train
    from hpcenv.runtime.train.settings import load_settings

    settings = together(ranks, lambda: load_settings(given.config, given.changes))
    return train(settings, given.folder or default_folder(settings), given.fresh, ranks)


if __name__ == "__main__":
    sys.exit(main())
