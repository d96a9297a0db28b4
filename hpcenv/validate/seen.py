"""From what the ranks wrote to what was seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpcenv.base.known import value_of
from hpcenv.base.version import Version
from hpcenv.compat.model import Outlook
from hpcenv.image.facts import ImageFacts
from hpcenv.launch.model import Launch

_STEPS = {
    "python": "the start of Python",
    "load": "loading libmpi",
    "version": "MPI_Get_library_version",
    "init": "MPI_Init",
    "ring": "the first message",
    "allreduce": "MPI_Allreduce",
    "large": "the 24 MiB message",
    "finalize": "MPI_Finalize",
    "done": "its exit after MPI_Finalize",
}
"""The steps of the probe, in order, as a person calls them."""


_SAID_LINES = 20


@dataclass(frozen=True)
class RankRecord:
    """The file of one rank of the probe, as its last step left it.

    Attributes
    ----------
    step : str
        The last step that was begun; ``done``, or ``stopped`` where the probe gave up itself.
    launcher_rank : int, optional
        What the launcher's environment says, whatever the MPI library makes of it.
    environment : mapping
        Variables of launcher and PMI that were set; most without their value.
    at : mapping
        When each step began, in seconds since 1970.
    library, mount : str, optional
        The libmpi that was loaded, and the mount point it lies on.
    ring, integers, floats, large : bool, optional
        Whether what came was what had to come.
    bytes_per_second : int, optional
        Of a 24 MiB message sent and received at once.
    unprovable : bool, optional
        With ``stopped``: the probe could not use what it found; nothing follows for the launch.
    """

    schema: Literal[1]
    step: str
    host: str
    pid: int
    launcher_rank: int | None
    python: str
    trace: str
    environment: Mapping[str, str]
    at: Mapping[str, float]
    library: str | None = None
    mount: str | None = None
    version: str | None = None
    family: str | None = None
    rank: int | None = None
    size: int | None = None
    processor: str | None = None
    ring: bool | None = None
    integers: bool | None = None
    floats: bool | None = None
    large: bool | None = None
    bytes_per_second: int | None = None
    stopped: str | None = None
    unprovable: bool | None = None

    @property
    def name(self) -> str:
        """How a person is told which rank it is."""
        number = self.launcher_rank if self.launcher_rank is not None else self.rank
        return f"rank {number if number is not None else '?'} on {self.host}"


@dataclass(frozen=True)
class Traces:
    """What a run left besides the ranks' own files.

    Attributes
    ----------
    started : mapping of int to str
        Host by launcher's rank: the ranks whose container was about to be started.
    hung : frozenset of str
        Names of the trace files that a rank's own watchdog wrote into.
    status : int
        Of the launcher.
    timed_out : bool
        Whether the deadline ended it.
    seconds : float
        Wall-clock time of the whole run.
    tail : str
        What launcher and ranks wrote to stderr, or its end.
    """

    started: Mapping[int, str]
    hung: frozenset[str]
    status: int
    timed_out: bool
    seconds: float
    tail: str


Unproved = Literal["not run", "not this site", "not proved", "cannot prove"]


@dataclass(frozen=True)
class Seen:
    """What a launch was seen to do.

    Attributes
    ----------
    outlook : Outlook, optional
        None where it was not seen; `unproved` then says of what kind that is.
    says : str
        One sentence: what was seen, or why nothing was.
    surprises : tuple of str
        What was seen besides and should not be so, such as a libmpi bound over the image's.
    said : tuple of str
        The last lines that launcher and ranks wrote, where it did not work.
    command : str
        The line that was run; empty where none was.
    """

    outlook: Outlook | None
    says: str
    unproved: Unproved | None = None
    surprises: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    command: str = ""
    seconds: float | None = None
    ranks: tuple[RankRecord, ...] = field(default=())

    def __str__(self) -> str:
        if self.outlook is Outlook.MAY_HANG:
            return "hangs"
        if self.outlook is not None:
            return str(self.outlook)
        return (
            self.unproved if self.unproved == "not this site" else f"{self.unproved}: {self.says}"
        )


def unseen(kind: Unproved, why: str) -> Seen:
    """Return the word for a launch that was not run."""
    return Seen(outlook=None, says=why, unproved=kind)


def judge(launch: Launch, ranks: Sequence[RankRecord], traces: Traces, facts: ImageFacts) -> Seen:
    """Say what was seen.

    A launch *works* only if the world has the size that was asked for, each rank was there once,
    every value was right, and the launcher ended with status 0.
    """
    ranks = sorted(ranks, key=lambda r: (r.launcher_rank is None, r.launcher_rank or 0, r.host))
    if any(rank.unprovable for rank in ranks):
        says = next(rank.stopped or "" for rank in ranks if rank.unprovable)
        return Seen(None, says, "cannot prove", ranks=tuple(ranks), seconds=traces.seconds)
    outlook, says = _outcome(launch, ranks, traces)
    return Seen(
        outlook,
        says,
        surprises=_surprises(ranks, facts),
        said=() if outlook is Outlook.WORKS else _words(traces.tail),
        seconds=traces.seconds,
        ranks=tuple(ranks),
    )


def agree(predicted: Outlook, seen: Outlook) -> bool:
    """Whether an outcome is what was predicted.

    Whoever says that a launch may hang has not said that it must. Of an unknown nothing was said.
    """
    works = {Outlook.WORKS, Outlook.SLOW}
    fits = {
        Outlook.WORKS: works,
        Outlook.SLOW: works,
        Outlook.NEVER_RUN: works,
        Outlook.MAY_HANG: works | {Outlook.MAY_HANG},
        Outlook.SINGLETONS: {Outlook.SINGLETONS},
        Outlook.FAILS: {Outlook.FAILS},
        Outlook.UNKNOWN: set(Outlook),
    }
    return seen in fits[predicted]


def _outcome(launch: Launch, ranks: Sequence[RankRecord], traces: Traces) -> tuple[Outlook, str]:
    absent = _absent(launch, ranks, traces)
    unfinished = [rank for rank in ranks if rank.step != "done"]
    stopped = [rank for rank in ranks if rank.stopped]
    if stopped:
        return Outlook.FAILS, f"{stopped[0].name}: {stopped[0].stopped}"
    if traces.timed_out or any(rank.trace in traces.hung for rank in unfinished):
        where = [f"{rank.name} in {_STEPS.get(rank.step, rank.step)}" for rank in unfinished]
        if not where and ranks:
            where = [f"{rank.name} in {_STEPS['done']}" for rank in ranks]
        return Outlook.MAY_HANG, _sentence(
            f"still running after {traces.seconds:.0f} s", where, absent
        )
    if absent or unfinished:
        where = [f"{rank.name} ended in {_STEPS.get(rank.step, rank.step)}" for rank in unfinished]
        return Outlook.FAILS, _sentence(
            f"the launcher ended with status {traces.status}", where, absent
        )
    sizes = {rank.size for rank in ranks}
    if launch.ranks > 1 and sizes == {1}:
        return Outlook.SINGLETONS, f"{len(ranks)} × rank 0 of 1: the ranks do not see each other"
    numbers = sorted(rank.rank for rank in ranks if rank.rank is not None)
    if sizes != {launch.ranks} or numbers != list(range(launch.ranks)):
        seen = ", ".join(f"{rank.rank} of {rank.size}" for rank in ranks)
        return Outlook.FAILS, f"the world fell apart: ranks {seen}, asked for {launch.ranks}"
    wrong = [f"{rank.name}: {what}" for rank in ranks for what in _wrong(rank) if launch.ranks > 1]
    if wrong:
        return Outlook.FAILS, f"wrong values: {'; '.join(wrong)}"
    hosts = {rank.host for rank in ranks}
    if traces.status != 0:
        return (
            Outlook.FAILS,
            f"every rank was right, and yet the launcher ended with status {traces.status}",
        )
    return Outlook.WORKS, _praise(launch, ranks, len(hosts))


def _praise(launch: Launch, ranks: Sequence[RankRecord], hosts: int) -> str:
    speeds = [rank.bytes_per_second for rank in ranks if rank.bytes_per_second]
    speed = f", slowest large message {min(speeds) / 1e9:.2g} GB/s" if speeds else ""
    nodes = f" on {hosts} hosts" if hosts > 1 else ""
    return f"{launch.ranks} ranks{nodes}, every value right{speed}"


def _absent(launch: Launch, ranks: Sequence[RankRecord], traces: Traces) -> list[str]:
    """Name the ranks of which no file is there."""
    if any(rank.launcher_rank is None for rank in ranks):
        lacking = launch.ranks - len(ranks)
        return [f"{lacking} of {launch.ranks} ranks never came"] if lacking > 0 else []
    came = {rank.launcher_rank for rank in ranks}
    names = []
    for number in range(launch.ranks):
        if number in came:
            continue
        host = traces.started.get(number)
        names.append(
            f"rank {number} never came: started on {host}, but its container did not reach Python"
            if host
            else f"rank {number} never came: the launcher did not start it"
        )
    return names


def _wrong(rank: RankRecord) -> list[str]:
    checks = {
        "the ring's token": rank.ring,
        "the sum of integers": rank.integers,
        "the sum of floats": rank.floats,
        "the 24 MiB message": rank.large,
    }
    return [what for what, right in checks.items() if not right]


def _surprises(ranks: Sequence[RankRecord], facts: ImageFacts) -> tuple[str, ...]:
    found: list[str] = []
    loaded = {(rank.library, rank.version) for rank in ranks if rank.library and rank.version}
    if len(loaded) > 1:
        each = "; ".join(f"{rank.name}: {rank.library}" for rank in ranks if rank.library)
        found.append(f"the ranks loaded different MPI libraries: {each}")
    for rank in ranks:
        if rank.library and rank.mount not in (None, "", "/"):
            found.append(
                f"{rank.name} loaded {rank.library}, which is bound from outside ({rank.mount})"
            )
    mpis = value_of(facts.mpis)
    if mpis is None:
        return tuple(found)
    known = {mpi.file: mpi for mpi in mpis}
    for library, version in sorted((str(a), str(b)) for a, b in loaded):
        mpi = known.get(library)
        if mpi is None:
            files = ", ".join(known) or "none"
            found.append(f"{library} was loaded; the MPI libraries read from the image: {files}")
            continue
        expected, seen = value_of(mpi.version), _version_in(version)
        if expected is not None and seen is not None and expected.release != seen.release:
            found.append(f"{library} says {version!r}, where {expected} was read from the image")
    return tuple(dict.fromkeys(found))


def _version_in(text: str) -> Version | None:
    """The version in what MPI_Get_library_version says (its first line)."""
    for word in text.replace(",", " ").split():
        try:
            return Version.parse(word)
        except ValueError:
            continue
    return None


def _sentence(start: str, *parts: Sequence[str] | str) -> str:
    words = [start]
    for part in parts:
        words += [part] if isinstance(part, str) else list(part)
    return "; ".join(word for word in words if word)


def _words(text: str) -> tuple[str, ...]:
    """The last lines that say something; launchers draw rules and leave lines empty."""
    lines = [line.rstrip() for line in text.splitlines() if any(c.isalpha() for c in line)]
    return tuple(dict.fromkeys(lines))[-_SAID_LINES:]
