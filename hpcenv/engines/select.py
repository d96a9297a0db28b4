"""Which engine to use."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcenv.base.errors import Outside
from hpcenv.engines.apptainer import Apptainer
from hpcenv.engines.engine import Complaint, Engine

_COMMANDS = ("apptainer", "singularity")


def candidates(engines: Path) -> tuple[Apptainer, ...]:
    """Return the engines that are there: those of PATH, then the private one; each once."""
    return tuple(_candidates(engines))


def usable_engine(engines: Path) -> Engine:
    """Return the first engine that can run an image here.

    Raises
    ------
    Outside
        If there is none, with what is wrong with each.
    """
    return _first(candidates(engines), Apptainer.check)


def building_engine(engines: Path, work: Path) -> Engine:
    """Return the first engine that can build in trees below the folder `work`; raises likewise."""
    return _first(candidates(engines), lambda engine: engine.check_run(work))


def _first(
    engines: Sequence[Apptainer], check: Callable[[Apptainer], Sequence[Complaint]]
) -> Apptainer:
    wrong = []
    for engine in engines:
        fatal = [complaint for complaint in check(engine) if complaint.fatal]
        if not fatal:
            return engine
        wrong += [f"{engine.program}: {c.says}\n      {c.remedy}" for c in fatal]
    if not wrong:
        raise Outside("there is no container engine on this host", remedy="hpcenv engine install")
    raise Outside("\n    ".join(["no container engine on this host can be used", *wrong]))


def _candidates(engines: Path) -> Iterator[Apptainer]:
    seen: set[Path] = set()
    private = engines / "bin" / "apptainer"
    found = [which for command in _COMMANDS if (which := shutil.which(command))]
    for program in [*map(Path, found), private]:
        real = program.resolve()
        if real in seen or not real.is_file():
            continue
        seen.add(real)
        yield Apptainer(program)
