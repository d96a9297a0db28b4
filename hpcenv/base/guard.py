"""A process of its own that runs one program and lets nothing of it survive.

`process.run` starts this file, not the program. So whatever becomes of the caller, also
``kill -9``, somebody is left who ends the program: this process reads the caller's end of a pipe
closing. And it is the *subreaper* of everything below it: a daemon that the program double-forked
into a session of its own is still its descendant, and is found without guessing.

Run as ``python -I -S guard.py ASK TELL`` with two inherited pipes. It reads one line of JSON from
ASK (``argv``, ``env``, ``cwd``), and writes one to TELL when all is over: ``status`` and ``left``,
or ``errno`` where the program could not be started. End-of-file on ASK asks for the end at once.
Needs the standard library alone, and nothing else of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time

GRACE_S = 3.0
"""Seconds between being asked (TERM) and being killed, for whoever still runs."""
GIVE_UP_S = 10.0
"""Seconds after the first KILL when we stop waiting for what cannot be killed."""

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.02


class Guard:
    """The program, and what became of it."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Handlers, not SIG_IGN, which the program would inherit. A terminal's signals never come
        # here (the session is our own); whoever sends TERM wants the end.
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._noted)
        self._asked_by_signal = False
        self._program = 0
        self._status: int | None = None

    def start(self, argv: list[str], env: dict[str, str], cwd: str | None) -> None:
        """Start the program in a session of its own; raises OSError where it cannot be."""
        failed, fail = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores both
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                if cwd is not None:
                    os.chdir(cwd)
                os.execvpe(argv[0], argv, env)
            except OSError as error:
                os.write(fail, str(error.errno).encode())
            finally:
                os._exit(127)
        self._program = pid
        os.close(fail)
        # Ours of the program's streams must close, or their readers wait for us as well.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        with os.fdopen(failed) as pipe:
            number = pipe.read()
        if number:
            raise OSError(int(number), os.strerror(int(number)))

    def wait(self, ask: int) -> None:
        """Wait until the program has ended, or its end is asked for."""
        while self._status is None and not self._asked_by_signal:
            ready, _, _ = select.select([ask, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._collect()
            if ask in ready and not os.read(ask, 4096):
                return

    def end(self) -> tuple[int, list[int]]:
        """End what still runs; return the program's status, and what it had left behind."""
        if self._status is None:
            self._ask_then_kill()
        left = sorted(self._descendants())
        self._ask_then_kill()
        return (-signal.SIGKILL if self._status is None else self._status), left

    def _ask_then_kill(self) -> None:
        began = time.monotonic()
        asked: set[int] = set()
        while remaining := self._descendants():
            waited = time.monotonic() - began
            if waited > GRACE_S + GIVE_UP_S:
                return
            if waited > GRACE_S:
                _send(remaining, signal.SIGKILL)
            else:
                _send(remaining - asked, signal.SIGTERM)
                # A stopped process would sleep over what it was asked.
                _send(remaining - asked, signal.SIGCONT)
                asked |= remaining
            time.sleep(_TICK_S)

    def _descendants(self) -> set[int]:
        self._collect()
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                        state, parent = stat.read().rpartition(")")[2].split()[:2]
                except OSError:
                    continue
                parents[int(entry)] = (int(parent), state)
        family = {os.getpid()}
        grew = True
        while grew:
            more = {pid for pid, (parent, _) in parents.items() if parent in family} - family
            family |= more
            grew = bool(more)
        return {pid for pid in family - {os.getpid()} if parents[pid][1] not in "ZX"}

    def _collect(self) -> None:
        """Take the status of whatever ended, the program or an orphan that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._program:
                self._status = os.waitstatus_to_exitcode(status)

    def _noted(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self._asked_by_signal = True


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def main() -> None:
    """Do what the caller's line says, then tell how it ended."""
    ask, tell = int(sys.argv[1]), int(sys.argv[2])
    guard = Guard()
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(ask, 1 << 16)
        if not piece:
            return
        line += piece
    wanted = json.loads(line)
    os.set_inheritable(ask, False)
    os.set_inheritable(tell, False)
    told: dict[str, object]
    try:
        guard.start(wanted["argv"], wanted["env"], wanted["cwd"])
    except OSError as error:
        told = {"errno": error.errno}
    else:
        guard.wait(ask)
        status, left = guard.end()
        told = {"status": status, "left": left}
    with contextlib.suppress(BrokenPipeError):
        os.write(tell, json.dumps(told).encode())


main()
