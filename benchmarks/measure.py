"""Time whole processes, ours and what it is compared with in turn, and keep every number."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from hpcenv.base.errors import Outside
from hpcenv.base.process import run

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Command:
    """A program that is timed.

    Attributes
    ----------
    label : str
        What a table calls it.
    before : callable, optional
        Run before each timing, outside it.
    """

    label: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = ROOT
    before: Callable[[], None] | None = None


@dataclass(frozen=True)
class Timed:
    """All times of one command, in seconds, in the order in which they were taken."""

    label: str
    command: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Host:
    """The machine and the moment; `load` is the one-minute load average before the first run."""

    cpu: str
    cores: int
    os: str
    kernel: str
    python: str
    load: float
    commit: str
    date: str


@dataclass(frozen=True)
class Result:
    """One benchmark.

    Attributes
    ----------
    aim : float
        Upper limit: of our median in seconds, or of the ratio of the medians.
    """

    schema: Literal[1]
    name: str
    says: str
    aim: float
    aim_of: Literal["seconds", "ratio"]
    ours: Timed
    against: Timed | None
    host: Host

    @property
    def ratio(self) -> float | None:
        """Our median over the other's."""
        return self.ours.median / self.against.median if self.against else None

    @property
    def met(self) -> bool:
        """Whether the aim was met in this run."""
        reached = self.ours.median if self.aim_of == "seconds" else self.ratio
        return reached is not None and reached <= self.aim


def compare(ours: Command, against: Command | None, rounds: int) -> tuple[Timed, Timed | None]:
    """Time two commands in turn, so that what else the machine does falls on both.

    One round before the first warms the caches and is not counted, unless there is only one.
    """
    both = [ours, against] if against else [ours]
    if rounds > 1:
        for command in both:
            _once(command)
    times: dict[str, list[float]] = {command.label: [] for command in both}
    for _ in range(rounds):
        for command in both:
            times[command.label].append(_once(command))
    made = [
        Timed(
            command.label, _portable(command.argv), tuple(round(t, 4) for t in times[command.label])
        )
        for command in both
    ]
    return made[0], made[1] if against else None


def _portable(argv: Sequence[str]) -> str:
    """A command line without the folders of the machine that ran it."""
    line = " ".join(argv)
    return line.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")


def host() -> Host:
    """Describe this machine."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    return Host(
        cpu=model,
        cores=len(os.sched_getaffinity(0)),
        os=platform.freedesktop_os_release()["PRETTY_NAME"],
        kernel=platform.release(),
        python=platform.python_version(),
        load=round(os.getloadavg()[0], 2),
        commit=commit,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def output(argv: Sequence[str], doing: str, deadline: float = 600.0) -> str:
    """Run something that a benchmark needs, and return what it printed."""
    return run(argv, deadline=deadline, cwd=ROOT).must(doing).out.strip()


def _once(command: Command) -> float:
    if command.before is not None:
        command.before()
    began = time.perf_counter()
    done = subprocess.run(
        command.argv,
        env={**os.environ, **command.env},
        cwd=command.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise Outside(f"{command.label} ended with status {done.returncode}\n{done.stderr[-2000:]}")
    return took
