"""What a person sees of a run: rank 0's lines and progress on stderr, results on stdout."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from hpcenv.base.errors import Failure
from hpcenv.runtime.ranks import Agreed, Ranks, connect, who

PLAIN_EVERY_S = 5.0
_BAR = 30


def say(line: str) -> None:
    """Tell the person what is going on."""
    # One write a line: ranks share the stream, and lines must not mix.
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """Print a result."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


class Progress:
    """How far something is: a bar on a terminal, else a plain line every few seconds.

    Parameters
    ----------
    label : str
        What is going on.
    total : int
        The count at which it is done.
    quiet : bool
        True on every rank but 0.
    """

    def __init__(self, label: str, total: int, *, quiet: bool) -> None:
        self.label = label
        self.total = max(1, total)
        self.quiet = quiet
        self.bar = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.told = time.monotonic()
        self.drawn = False

    def at(self, count: int, note: str = "") -> None:
        """Show the count that was reached, with a few words."""
        now = time.monotonic()
        if self.quiet or now - self.told < (0.1 if self.bar else PLAIN_EVERY_S):
            return
        self.told = now
        share = min(1.0, count / self.total)
        if self.bar:
            filled = "━" * round(share * _BAR)
            sys.stderr.write(f"\r\x1b[2K{self.label} {filled:<{_BAR}} {share:4.0%} {note}")
            sys.stderr.flush()
            self.drawn = True
        else:
            say(f"{self.label}: {share:.0%} {note}".rstrip())

    def clear(self) -> None:
        """Take the bar away, before other lines are written."""
        if self.drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self.drawn = False


def run_ranks(program: str, body: Callable[[Ranks], int]) -> int:
    """Join the ranks, run `body` on each, and end them all when one fails.

    Returns
    -------
    int
        The exit status. A failure that all ranks agreed on is told once, by rank 0. Any other is
        told by the rank that met it, with its node, and ends all ranks at once: they may be
        waiting for it.
    """
    try:
        ranks = connect(os.environ)
    except Failure as failure:
        # No rank can know whether another tells it: each does.
        say(f"{program}: {failure}")
        return failure.status
    try:
        return body(ranks)
    except Agreed as failure:
        if ranks.rank == 0:
            say(f"{program}: {failure}")
        ranks.barrier()
        return failure.status
    except Failure as failure:
        say(f"{program}: {_place(ranks)}{failure}")
        return _end(ranks, failure.status)
    except KeyboardInterrupt:
        say(f"{program}: {_place(ranks)}stopped; nothing half-made was left")
        return _end(ranks, 130)
    except OSError as error:
        if error.errno is None:
            _defect(program, ranks)
        name = f"{error.filename}: " if error.filename else ""
        say(f"{program}: {_place(ranks)}{name}{error.strerror}")
        return _end(ranks, 3)
    except Exception:
        _defect(program, ranks)


def _place(ranks: Ranks) -> str:
    return f"{who([ranks.rank], ranks.nodes)}: " if ranks.size > 1 else ""


def _end(ranks: Ranks, status: int) -> int:
    if ranks.size > 1:
        ranks.abort(status)
    return status


def _defect(program: str, ranks: Ranks) -> NoReturn:
    say(f"{program}: {_place(ranks)}a defect of this program:\n{traceback.format_exc()}")
    ranks.abort(70)
