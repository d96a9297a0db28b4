"""Run a launch with the injected probe, and say what was seen."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.resources
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from hpcenv.base.errors import Failure, Outside
from hpcenv.base.known import value_of
from hpcenv.base.process import Outcome, run
from hpcenv.base.record import load_json
from hpcenv.compat.model import Judged, Outlook
from hpcenv.engines.engine import Bind, Engine
from hpcenv.image.facts import ImageFacts
from hpcenv.launch.command import Command, clean, command, lacks, shell_line
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteMpi, SiteProfile
from hpcenv.validate import segments
from hpcenv.validate.seen import RankRecord, Seen, Traces, judge, unseen

DEADLINE_S = 60.0
"""Two ranks take one to three seconds; the rest is for a busy or a large machine."""

_PREFLIGHT_S = 60.0
_PROBE = PurePosixPath("/hpcenv-probe.py")
_SEEN = PurePosixPath("/hpcenv-seen")

# Run by the image's shell: which of its Pythons has what the probe needs?
_FIND_PYTHON = """
for name in python3 python /usr/libexec/platform-python; do
    if command -v "$name" >/dev/null 2>&1 && "$name" -I -B -c '
import argparse, ctypes, faulthandler, hashlib, json, platform, secrets, socket, sys
sys.exit(sys.version_info < (3, 6))'; then
        echo "hpcenv-python: $(command -v "$name")"
        exit 0
    fi
done
echo "hpcenv-python:"
"""

# Run on the host, around the engine: leaves the name of the host that each rank was started on.
_ARRIVE = """
folder=$1
shift
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${PALS_RANKID:-${SLURM_PROCID:-}}}}}
echo "${SLURMD_NODENAME:-$(uname -n)}" >"$folder/started.$rank.$$"
exec "$@"
"""


def probe_file() -> Path:
    """Return the path of the probe, which is a resource of this package."""
    file = importlib.resources.files("hpcenv") / "probe" / "mpi_probe.py"
    return Path(str(file))


def prove(
    site: SiteProfile,
    here: SiteProfile,
    engine: Engine,
    image: Path,
    facts: ImageFacts,
    judged: Sequence[Judged],
    *,
    ambient: Mapping[str, str],
    folder: Path | None = None,
    deadline: float = DEADLINE_S,
    queue: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Seen, ...]:
    """Prove each launch that this machine can really make.

    A launch that is predicted to fail is run like the others: a prediction is only worth what is
    seen beside it.

    Parameters
    ----------
    here : SiteProfile
        What was just found on this machine; where it is not `site`, nothing is run.
    judged : sequence of Judged
        The launches; the mends of their findings are applied.
    ambient : mapping
        The caller's environment.
    folder : Path, optional
        A folder that all nodes see, for launches over several of them.
    deadline : float
        Seconds for one launch.
    queue : bool
        Whether ``srun`` may ask for nodes of its own, outside an allocation.

    Returns
    -------
    tuple of Seen
        One for each of `judged`, in their order.
    """
    found: list[Seen] = []
    python: str | Seen | None = None
    for item in judged:
        reason = why_not(site, here, item.launch, ambient=ambient, queue=queue)
        if reason is None:
            python = python or find_python(engine, image, ambient)
            reason = python if isinstance(python, Seen) else None
        if reason is not None or not isinstance(python, str):
            assert reason is not None
            found.append(reason)
            continue
        say(f"proving {item.launch}, {item.launch.ranks} ranks")
        try:
            found.append(
                prove_one(
                    site,
                    engine,
                    image,
                    facts,
                    item,
                    python,
                    ambient=ambient,
                    folder=folder,
                    deadline=deadline,
                )
            )
        except Failure as failure:
            found.append(unseen("not proved", failure.says))
    return tuple(found)


def prove_one(
    site: SiteProfile,
    engine: Engine,
    image: Path,
    facts: ImageFacts,
    item: Judged,
    python: str,
    *,
    ambient: Mapping[str, str],
    folder: Path | None = None,
    deadline: float = DEADLINE_S,
) -> Seen:
    """Run the ranks of one launch and judge what they wrote.

    Parameters
    ----------
    python : str
        The interpreter within the image; see `find_python`.

    Raises
    ------
    Refused
        If the launch cannot be composed.
    Outside
        If the launcher cannot be started.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hpcenv-proof-", dir=folder) as name:
        seen = Path(name)
        made = command(
            site,
            engine,
            image,
            item.launch,
            [finding.mend for finding in item.findings if finding.mend],
            [python, "-I", "-B", str(_PROBE), str(_SEEN), *_probe_options(facts, deadline)],
            ambient=ambient,
            uid=os.getuid(),
            binds=[Bind(probe_file(), _PROBE), Bind(seen, _SEEN, writable=True)],
        )
        with segments.swept(), _slurm_step(item.launch, made) as named:
            outcome = run(
                (*named.launcher, "/bin/sh", "-c", _ARRIVE, "sh", str(seen), *named.inner),
                deadline=deadline,
                env=named.env,
            )
        verdict = judge(item.launch, _records(seen), _traces(seen, outcome), facts)
    line = shell_line(made, ambient, shutil.which)
    return dataclasses.replace(verdict, command=line)


def why_not(
    site: SiteProfile,
    here: SiteProfile,
    launch: Launch,
    *,
    ambient: Mapping[str, str],
    queue: bool,
) -> Seen | None:
    """Return the word for a launch that cannot be proved here, and None for one that can."""
    if differs := differences(site, here):
        return unseen("not this site", "; ".join(differs))
    if launch.model != "hybrid":
        return unseen("not proved", "the bind model is not run so far")
    if launch.launcher == "srun":
        if value_of(here.slurm) is None:
            return unseen("not proved", "there is no Slurm on this machine")
        if "SLURM_JOB_ID" not in ambient and not queue:
            return unseen("not proved", "outside an allocation; try within salloc, or --queue")
        return None
    if (other := _other_mpi(site, here, launch)) is not None:
        return unseen("not this site", other)
    if lacking := lacks(launch, ambient):
        return unseen("not proved", lacking)
    return None


def differences(site: SiteProfile, here: SiteProfile) -> tuple[str, ...]:
    """Return in what a profile is not this machine; nothing where it is.

    What one of the two does not know tells nothing; neither does the kernel, which moves under a
    site.
    """
    pairs = (
        ("architecture", value_of(site.arch), value_of(here.arch)),
        ("operating system", value_of(site.os), value_of(here.os)),
        ("C library", value_of(site.libc), value_of(here.libc)),
    )
    return tuple(
        f"{what} {_name(theirs)}, here {_name(ours)}"
        for what, theirs, ours in pairs
        if theirs is not None and ours is not None and theirs != ours
    )


def find_python(engine: Engine, image: Path, ambient: Mapping[str, str]) -> str | Seen:
    """Return the image's interpreter that can run the probe, or why nothing can be proved.

    Raises
    ------
    Outside
        If the engine cannot be started.
    """
    outcome = run(
        engine.exec_argv(image, ["/bin/sh", "-c", _FIND_PYTHON]),
        deadline=_PREFLIGHT_S,
        env=clean(ambient),
    )
    for line in outcome.out.splitlines():
        if line.startswith("hpcenv-python:"):
            path = line.partition(":")[2].strip()
            return path or unseen("cannot prove", "no Python ≥ 3.6 with ctypes in the image")
    said = (outcome.err.strip().splitlines() or [f"status {outcome.status}"])[-1]
    if "exec format error" in outcome.err.lower() or "architecture" in outcome.err.lower():
        return Seen(Outlook.FAILS, f"nothing in the image can be run here: {said}")
    return unseen("cannot prove", f"the image's shell cannot be run: {said}")


def _other_mpi(site: SiteProfile, here: SiteProfile, launch: Launch) -> str | None:
    """Say in what the launch's MPI is not the one on this machine; None where it is."""
    theirs = next((mpi for mpi in value_of(site.mpis) or () if mpi.name == launch.mpi), None)
    if theirs is None:
        return f"the profile has no MPI called {launch.mpi!r}"
    ours = next((mpi for mpi in value_of(here.mpis) or () if _same(mpi, theirs)), None)
    if ours is None:
        return f"{theirs.name}: its launcher and library are not here"
    told, found = value_of(theirs.library.version), value_of(ours.library.version)
    if told is not None and found is not None and told != found:
        return f"{theirs.name} {told}, here {found}"
    return None


def _same(one: SiteMpi, other: SiteMpi) -> bool:
    return (value_of(one.launcher), one.library.file) == (
        value_of(other.launcher),
        other.library.file,
    )


def _name(value: object) -> str:
    return str(getattr(value, "name", value))


def _probe_options(facts: ImageFacts, deadline: float) -> list[str]:
    # The ranks' own watchdog comes before the launcher's end, so that they can still say where.
    options = ["--deadline", f"{max(deadline - 5, deadline * 0.6):.1f}"]
    for mpi in value_of(facts.mpis) or ():
        # By soname as an application would, then by path for those that only an RPATH leads to.
        options += ["--library", mpi.soname, "--library", mpi.file]
    return options


def _records(folder: Path) -> list[RankRecord]:
    return [load_json(RankRecord, file) for file in sorted(folder.glob("rank.*.json"))]


def _traces(folder: Path, outcome: Outcome) -> Traces:
    started = {}
    for file in folder.glob("started.*"):
        rank = file.name.split(".")[1]
        if rank.isdigit():
            started[int(rank)] = file.read_text().strip()
    return Traces(
        started=started,
        hung=frozenset(f.name for f in folder.glob("trace.*") if "Timeout" in f.read_text()),
        status=outcome.status,
        timed_out=outcome.timed_out,
        seconds=outcome.seconds,
        tail=outcome.err[-4000:],
    )


@contextlib.contextmanager
def _slurm_step(launch: Launch, made: Command) -> Iterator[Command]:
    """Give an ``srun`` a name, and cancel what bears it when the block ends, however it ends.

    The ranks of an ``srun`` are children of Slurm's daemons, not ours: ending ``srun`` may leave
    them.
    """
    if launch.launcher != "srun":
        yield made
        return
    name = f"hpcenv-proof-{secrets.token_hex(4)}"
    extra = (f"--job-name={name}", "--kill-on-bad-exit=1")
    try:
        yield dataclasses.replace(made, launcher=(*made.launcher, *extra))
    finally:
        with contextlib.suppress(Outside):
            steps = run(["squeue", "--steps", "-h", "-o", "%i %j"], deadline=30, env=made.env)
            for line in steps.out.splitlines():
                step, _, of = line.strip().partition(" ")
                if of == name:
                    run(["scancel", step], deadline=30, env=made.env)
            if "SLURM_JOB_ID" not in made.env:
                run(["scancel", f"--name={name}"], deadline=30, env=made.env)
