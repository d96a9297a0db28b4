"""Run a program with a deadline, stream its lines, and leave nothing of it behind.

Programs here start others: an MPI launcher its ranks, an engine its mounts and helpers. Killing
the first is not enough. So each run gets a session of its own and a token in its environment, and
this process becomes the reaper of orphans; when the program ends, or is ended, whatever still
carries the token or descends from it is ended too: first asked (TERM), then killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from hpcenv.base.errors import Outside

TOKEN = "HPCENV_RUN_TOKEN"
GRACE_S = 3.0
_PR_SET_CHILD_SUBREAPER = 36
_KEEP_BYTES = 32 << 20

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
        Called with each line, from two threads (one a stream), as it is written.

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
    token = secrets.token_hex(16)
    environment = dict(os.environ if env is None else env)
    environment[TOKEN] = ":".join(filter(None, (environment.get(TOKEN), token)))
    _adopt_orphans()
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise Outside(
            f"cannot start {words[0]}: {error.strerror}",
            remedy=f"is it installed, and on PATH?  command -v {words[0]}",
        ) from error

    kept: dict[Stream, list[str]] = {"out": [], "err": []}
    assert process.stdout is not None and process.stderr is not None
    readers = [
        threading.Thread(target=_pump, args=(stream, name, kept[name], on_line), daemon=True)
        for stream, name in _streams(process.stdout, process.stderr)
    ]
    for reader in readers:
        reader.start()
    if stdin is not None:
        threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()

    timed_out = False
    left: tuple[int, ...] = ()
    try:
        process.wait(timeout=max(0.0, deadline))
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        # Also on KeyboardInterrupt: what was started ends before the error goes on its way.
        left = _end(process, token)
        for reader in readers:
            reader.join(timeout=GRACE_S)
    return Outcome(
        argv=words,
        status=process.returncode,
        out="".join(kept["out"]),
        err="".join(kept["err"]),
        seconds=time.monotonic() - began,
        timed_out=timed_out,
        left=left,
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


def _streams(out: IO[bytes], err: IO[bytes]) -> list[tuple[IO[bytes], Stream]]:
    return [(out, "out"), (err, "err")]


def _pump(
    stream: IO[bytes],
    name: Stream,
    kept: list[str],
    on_line: Callable[[Stream, str], None] | None,
) -> None:
    size = 0
    for raw in stream:
        line = raw.decode(errors="replace")
        kept.append(line)
        size += len(raw)
        while size > _KEEP_BYTES and len(kept) > 1:
            size -= len(kept.pop(0))
        if on_line is not None:
            on_line(name, line.rstrip("\r\n"))


def _feed(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(text.encode())


def _adopt_orphans() -> None:
    # Orphans of our children then become our children, so that /proc shows whose they are.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end(process: subprocess.Popen[bytes], token: str) -> tuple[int, ...]:
    """End the program if it still runs, and everything that it left; return the latter."""
    if process.poll() is None:
        _signal_all({process.pid, *_family(process.pid, token)}, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
    remains = _family(process.pid, token)
    first = tuple(sorted(remains))
    if remains:
        _signal_all(remains, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        while remains and time.monotonic() < until:
            time.sleep(0.02)
            remains = _family(process.pid, token)
    while remains or process.poll() is None:
        _signal_all(remains | ({process.pid} if process.poll() is None else set()), signal.SIGKILL)
        time.sleep(0.02)
        remains = _family(process.pid, token)
    process.wait()
    return first


def _signal_all(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _family(leader: int, token: str) -> set[int]:
    """The living processes that descend from `leader`, share its session, or carry the token."""
    parents: dict[int, int] = {}
    family = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid, state, parent, session = int(entry), fields[0], int(fields[1]), int(fields[3])
        if state in "ZX":
            if parent == os.getpid() and session == leader and pid != leader:
                _collect(pid)
            continue
        parents[pid] = parent
        if session == leader:
            family.add(pid)
    family.update(pid for pid in processes_with(token) if pid in parents)
    grew = True
    while grew:
        more = {p for p, parent in parents.items() if parent in family or parent == leader}
        grew = not more <= family
        family |= more
    return family - {leader, os.getpid()}


def _collect(pid: int) -> None:
    # An adopted orphan that ended stays a zombie until we ask for its status.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
