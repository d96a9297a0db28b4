"""Results on stdout, all else on stderr, and every error a person can cause as plain words."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hpcenv.base.errors import Failure, Outside

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def say(line: str) -> None:
    """Tell the person what is going on."""
    print(line, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Print a result."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read it has gone. Typer would make status 1 of it, which is an answer.
        _drop_the_rest()
        sys.exit(141)
    except OSError as error:
        _drop_the_rest()
        raise Outside(f"cannot write the result: {error.strerror}", where="stdout") from None


def _drop_the_rest() -> None:
    """Have Python not complain once more, of what it could not write, while it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def styled() -> bool:
    """Whether stderr is a terminal that wants colours and progress bars."""
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ


class Stopped(BaseException):
    """A signal asked us to stop. Not a KeyboardInterrupt, which Typer would swallow."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what a person can cause into a message and an exit status.

    SIGTERM and SIGHUP are taken like Ctrl-C: as an exception, so that what was started ends. What
    is ignored already, as under nohup, stays ignored. Only the first one counts: a second would
    cut off the tidying up.
    """
    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        # TOML, JSON and rendered files are UTF-8 whatever the locale can write.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        yield
    except Failure as failure:
        say(f"hpcenv: {failure}")
        sys.exit(failure.status)
    except (Stopped, KeyboardInterrupt):
        say("hpcenv: stopped; nothing half-made was left")
        sys.exit(130)
    except OSError as error:
        if error.errno is not None and error.filename is not None:
            say(f"hpcenv: {error.filename}: {error.strerror}")
        elif error.errno in _FULL:  # a write does not say which file
            say(f"hpcenv: {error.strerror}\n  df -h  of the store, of TMPDIR and of this folder")
        else:
            raise
        sys.exit(3)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in _STOPS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped
