"""Run a program with a deadline, stream its lines, and leave nothing of it behind.

Programs here start others: an MPI launcher its ranks, an engine its mounts and helpers. Killing
the first is not enough, and we may be killed ourselves. So each run is watched over by a small
process of its own, see `guard`: it ends the program and all that descends from it, when the
program ends, when the deadline passes, and when this process is gone for whatever reason.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcenv.base.errors import Outside

TOKEN = "HPCENV_RUN_TOKEN"
"""Environment variable that every process of a run inherits: tells whose it is, from outside."""

_GUARD = Path(__file__).with_name("guard.py")
_KEEP_BYTES = 32 << 20
_LONGEST_LINE = 1 << 20
_CHUNK = 1 << 16
_LAST_WORDS_S = 1.0

Stream = Literal["out", "err"]


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes
    ----------
    argv : tuple of str
        What was run.
    status : int
        Its exit status; ``-N`` where signal N ended it.
    out, err : str
        What it wrote, undecodable bytes replaced; the last 32 MiB of each.
    seconds : float
        Wall-clock time.
    timed_out : bool
        Whether the deadline ended it.
    left : tuple of int
        The processes that it had left running, and that were ended.
    """

    argv: tuple[str, ...]
    status: int
    out: str
    err: str
    seconds: float
    timed_out: bool
    left: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.status == 0 and not self.timed_out

    def must(self, doing: str, remedy: str | None = None) -> Outcome:
        """Return self, or raise when the program failed.

        Raises
        ------
        Outside
            With the last lines that the program wrote.
        """
        if self.ok:
            return self
        why = "ran past its deadline" if self.timed_out else f"ended with status {self.status}"
        tail = "\n    ".join((self.err or self.out).strip().splitlines()[-12:])
        says = f"{doing}: {self.argv[0]} {why} after {self.seconds:.1f} s"
        raise Outside(f"{says}\n    {tail}" if tail else says, remedy=remedy)


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    deadline: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    on_line: Callable[[Stream, str], None] | None = None,
) -> Outcome:
    """Run a program to its end.

    Parameters
    ----------
    argv : sequence of str
        The program and its arguments; no shell reads them.
    deadline : float
        Seconds after which it is ended.
    env : mapping of str to str, optional
        Its whole environment; this process's own when left out.
    cwd : Path, optional
        Where it runs.
    stdin : str, optional
        What it reads; nothing when left out.
    on_line : callable, optional
        Called with each line as it is written, from this thread. What it raises ends the program
        and goes on its way.

    Returns
    -------
    Outcome
        Also for a program that failed or was ended; see `Outcome.must`.

    Raises
    ------
    Outside
        If the program is not there or cannot be started.
    """
    words = tuple(os.fspath(word) for word in argv)
    environment = dict(os.environ if env is None else env)
    token = secrets.token_hex(16)
    environment[TOKEN] = ":".join(filter(None, (environment.get(TOKEN), token)))
    began = time.monotonic()
    guarded = _Guarded(stdin)
    try:
        guarded.start(words, environment, cwd)
        timed_out = guarded.follow(began + deadline, on_line)
    finally:
        # Also on KeyboardInterrupt: what was started ends before the error goes on its way.
        guarded.end()
    told = guarded.told()
    if told is None:
        # Somebody killed the guard itself. What it guarded is found by its token.
        for pid in processes_with(token):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        raise Outside(f"the process that watched over {words[0]} was killed")
    if "errno" in told:
        raise Outside(
            f"cannot start {words[0]}: {os.strerror(told['errno'])}",
            remedy=f"is it installed, and on PATH?  command -v {words[0]}",
        )
    return Outcome(
        argv=words,
        status=told["status"],
        out=guarded.out.text(),
        err=guarded.err.text(),
        seconds=time.monotonic() - began,
        timed_out=timed_out,
        left=tuple(told["left"]),
    )


def processes_with(token: str) -> list[int]:
    """Return the processes whose environment carries a run token."""
    wanted = token.encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if wanted in environment:
            found.append(int(entry))
    return found


class _Guarded:
    """The guard, the pipes to it, and what the program wrote."""

    def __init__(self, stdin: str | None) -> None:
        self.out = _Lines("out")
        self.err = _Lines("err")
        self._input = (stdin or "").encode()
        self._told = b""
        self._ask: int | None
        ask, self._ask = os.pipe()
        self._tell, tell = os.pipe()
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(ask), str(tell)],
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(ask, tell),
                start_new_session=True,
            )
        finally:
            os.close(ask)
            os.close(tell)

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> None:
        """Have the guard start the program."""
        wanted = {"argv": argv, "env": env, "cwd": None if cwd is None else str(cwd)}
        line = memoryview(json.dumps(wanted).encode() + b"\n")
        with suppress(BrokenPipeError):  # the guard was killed; `told` will say so
            while line and self._ask is not None:
                line = line[os.write(self._ask, line) :]

    def follow(self, until: float, on_line: Callable[[Stream, str], None] | None) -> bool:
        """Read until everything has ended; return whether the deadline came first."""
        out, err = self._guard.stdout, self._guard.stderr
        assert out is not None and err is not None
        timed_out = False
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ, self.out)
            selector.register(err, selectors.EVENT_READ, self.err)
            selector.register(self._tell, selectors.EVENT_READ)
            if self._guard.stdin is not None:
                os.set_blocking(self._guard.stdin.fileno(), False)
                selector.register(self._guard.stdin, selectors.EVENT_WRITE)
            while selector.get_map():
                over = self._tell not in selector.get_map()
                if over:  # the streams close at once, unless somebody could not be killed
                    wait: float | None = _LAST_WORDS_S
                else:
                    wait = None if timed_out else max(0.0, until - time.monotonic())
                ready = selector.select(wait)
                if over and not ready:
                    break
                for key, _ in ready:
                    if not self._serve(key, on_line):
                        selector.unregister(key.fileobj)
                if not (timed_out or self._told) and time.monotonic() >= until:
                    timed_out = True
                    self._ask_for_the_end()
        return timed_out

    def end(self) -> None:
        """Have everything ended, and wait until it is."""
        self._ask_for_the_end()
        try:
            self._guard.wait()
        finally:
            os.close(self._tell)
            for pipe in (self._guard.stdin, self._guard.stdout, self._guard.stderr):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()

    def told(self) -> dict[str, Any] | None:
        """Return what the guard had to tell; None where it was killed."""
        return json.loads(self._told) if self._told else None

    def _serve(
        self, key: selectors.SelectorKey, on_line: Callable[[Stream, str], None] | None
    ) -> bool:
        if key.events & selectors.EVENT_WRITE:
            return self._feed()
        piece = os.read(key.fd, _CHUNK)
        if isinstance(key.data, _Lines):
            key.data.add(piece, on_line)
        else:
            self._told += piece
        return bool(piece)

    def _feed(self) -> bool:
        pipe = self._guard.stdin
        assert pipe is not None
        try:
            self._input = self._input[os.write(pipe.fileno(), self._input) :]
        except BrokenPipeError:
            self._input = self._input[:0]
        if not self._input:
            pipe.close()
        return bool(self._input)

    def _ask_for_the_end(self) -> None:
        if self._ask is not None:
            os.close(self._ask)
            self._ask = None


class _Lines:
    """One stream: its last lines, and the piece that is not a line yet."""

    def __init__(self, name: Stream) -> None:
        self._name = name
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._begun = b""

    def add(self, piece: bytes, on_line: Callable[[Stream, str], None] | None) -> None:
        """Take what was read; nothing, at the end of the stream."""
        lines = (self._begun + piece).splitlines(keepends=True) if piece else [self._begun]
        whole = not piece or lines[-1].endswith(b"\n") or len(lines[-1]) > _LONGEST_LINE
        self._begun = b"" if whole else lines.pop()
        for line in filter(None, lines):
            self._kept.append(line)
            self._size += len(line)
            while self._size > _KEEP_BYTES:
                self._size -= len(self._kept.popleft())
            if on_line is not None:
                on_line(self._name, line.decode(errors="replace").rstrip("\r\n"))

    def text(self) -> str:
        """Return what was kept."""
        return b"".join(self._kept).decode(errors="replace")
