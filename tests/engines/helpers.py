"""Who runs things in these tests, and what they leave."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("driver.py")
SIGNALS = {"Ctrl-C": signal.SIGINT, "kill": signal.SIGTERM, "kill -9": signal.SIGKILL}


@dataclass(frozen=True)
class Person:
    """Somebody to run things as: how, with what Python, and where."""

    name: str
    home: Path
    tools: Path
    uid: int
    gid: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "PYTHONPATH": str(self.tools),
        }

    def start(self, *words: str | Path, stdin: str = "", **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **more},
            cwd=self.home,
            **self._ids(),
        )
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
        return process

    def _ids(self) -> dict[str, Any]:
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def run(
        self, *words: str | Path, stdin: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, stdin=stdin, **more)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def python(self, code: str, **more: str) -> str:
        done = self.run("/usr/bin/python3", "-c", code, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def unpack(self, tar: Path, tree: Path) -> None:
        self.python(
            "import subprocess, sys; from hpcenv.engines.userns import as_root_of_tree\n"
            f"from pathlib import Path; Path({str(tree)!r}).mkdir()\n"
            f"words = [*as_root_of_tree(), 'tar', '-C', {str(tree)!r}, '-xpf', {str(tar)!r}]\n"
            "subprocess.run(words, check=True)"
        )

    def remove(self, tree: Path) -> None:
        self.python(
            "from pathlib import Path; from hpcenv.engines.userns import remove_tree\n"
            f"remove_tree(Path({str(tree)!r}))"
        )


@dataclass(frozen=True)
class Ran:
    """What `driver.py` says of one `Apptainer.run`."""

    lines: list[str]
    error: str | None
    seconds: float


Script = Callable[..., Ran]


def driver(person: Person) -> tuple[str | Path, ...]:
    return "/usr/bin/python3", DRIVER if person.tools == ROOT else person.tools / "driver.py"


@dataclass(frozen=True)
class Installed:
    """A folder for engines, how long one took to install, and the system's libraries around it."""

    engines: Path
    seconds: float
    before: dict[str, str]
    after: dict[str, str]


def system_c_library() -> dict[str, str]:
    """SHA-256 of each file of the system's C library."""
    listed = subprocess.run(["dpkg", "-L", "libc6"], capture_output=True, text=True, check=True)
    files = [Path(line) for line in listed.stdout.splitlines()]
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and ".so" in file.name
    }


def installing(data: Path, *prefix: str | Path) -> subprocess.Popen[str]:
    """Start `hpcenv engine install` with `data` as the user's data folder."""
    return subprocess.Popen(
        [*prefix, Path(sys.executable).with_name("hpcenv"), "engine", "install"],
        env={**os.environ, "XDG_DATA_HOME": str(data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def install(data: Path, *prefix: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    process = installing(data, *prefix)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def unique_seconds() -> str:
    """A long time to sleep that tells one test's processes from all others."""
    return f"86400.{secrets.randbelow(10**9):09d}"


def processes_with(word: str, program: Path) -> list[str]:
    """Command lines of the processes that hold a word, or run a program of the engine."""
    engine = str(program.resolve().parents[2])
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if word in line or str((entry / "exe").readlink()).startswith(engine):
                found.append(line)
    return found


def mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(folder) in line]
