"""From a launch to the command that does it. Pure: what it needs to know, it is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcenv.base.errors import Refused
from hpcenv.base.known import value_of
from hpcenv.engines.engine import Bind, Engine
from hpcenv.image.facts import Family
from hpcenv.launch.model import Launch, Mend
from hpcenv.site.model import SiteMpi, SiteProfile

_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Open MPI refuses to start as root without these two."""

_PASS = re.compile(
    r"""^(
    HOME|USER|LOGNAME|SHELL|PATH|TERM|COLUMNS|LINES|NO_COLOR|TZ|LANG|LANGUAGE|LC_[A-Z]+
    |TMPDIR|XDG_RUNTIME_DIR|LD_LIBRARY_PATH         # a module's launcher needs its libraries;
                                                    # engines do not hand this one inside
    |(APPTAINER|SINGULARITY)[A-Z]*_.*|DOCKER_HOST
    |SLURM_.*|SALLOC_.*|PBS_.*|LSB_.*|PALS_.*       # the allocation
    |(OMPI|PMIX|PRTE|OPAL)_MCA_.*|OMPI_ALLOW_RUN_AS_ROOT(_CONFIRM)?
    |HYDRA_.*|MPIR_CVAR_.*|MPICH_.*|I_MPI_.*|MV2_.*
    |UCX_.*|FI_.*|NCCL_.*
    |OMP_.*|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES
    )$""",
    re.VERBOSE,
)
"""What of the caller's environment reaches a job: identity, terminal, temporary space, engine,
allocation, and settings that a site makes for its MPI and fabric."""

_OF_ANOTHER_RANK = re.compile(
    r"^(OMPI_MCA_(orte|ess|pmix|initial)_?.*|SLURM_(PROCID|LOCALID|TASK_PID|GTIDS|STEP_.*|STEPID))$"
)
"""Set for one rank of a job step: a launcher started from there would take itself for that rank."""

_MISLEADING = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "LD_PRELOAD")
"""What a line pasted into a shell would hand to the image's programs, to their harm."""


@dataclass(frozen=True)
class Command:
    """What starts the ranks.

    Attributes
    ----------
    launcher : tuple of str
        The launcher and its arguments.
    inner : tuple of str
        What each rank runs: the engine, the image, the program.
    env : mapping
        The whole environment of the launcher.
    """

    launcher: tuple[str, ...]
    inner: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole argument vector."""
        return self.launcher + self.inner


def command(
    site: SiteProfile,
    engine: Engine,
    image: Path,
    launch: Launch,
    mends: Iterable[Mend],
    argv: Sequence[str],
    *,
    ambient: Mapping[str, str],
    uid: int,
    env: Mapping[str, str] | None = None,
    binds: Sequence[Bind] = (),
) -> Command:
    """Compose the command of a launch.

    Parameters
    ----------
    mends : iterable of Mend
        Of the findings on this launch; where two set one variable, the later wins.
    argv : sequence of str
        What each rank runs inside the image.
    ambient : mapping
        The caller's environment, of which only what a job needs is passed on.
    uid : int
        The caller's, since launchers treat root apart.
    env : mapping, optional
        What the user named for the ranks; wins over the mends.

    Raises
    ------
    Refused
        If the launch cannot be composed: its MPI is not of the site, or of an unknown family, or
        it is of the bind model.
    """
    if launch.model != "hybrid":
        raise Refused(f"{launch}: only the hybrid model can be started so far")
    mends = tuple(mends)
    given: dict[str, str] = {}
    for mend in mends:
        given.update(mend.env)
    given.update(env or {})
    more = [word for mend in mends for word in mend.launcher_args]
    whole = clean(ambient)
    if launch.launcher == "srun":
        # srun hands its own environment to the ranks; its --export cannot carry commas.
        whole.update(given)
        words = [*_srun(launch), *more]
    else:
        mpi = _mpi_of(site, launch)
        family = _family_of(mpi)
        path = value_of(mpi.launcher)
        if path is None:
            raise Refused(f"the launcher of {mpi.name} is not known", where=f"site {site.name}")
        if family is Family.OPENMPI:
            if uid == 0:
                whole.update(_ROOT)
            words = [path, *_openmpi(site, launch), *more]
            words += [word for item in given.items() for word in ("-x", "=".join(item))]
        else:
            words = [path, *_hydra(launch, ambient), *more]
            words += [word for item in given.items() for word in ("-genv", *item)]
    engine_args = [word for mend in mends for word in mend.engine_args]
    inner = engine.exec_argv(image, argv, binds=binds, args=engine_args)
    return Command(tuple(words), tuple(inner), whole)


def lacks(launch: Launch, ambient: Mapping[str, str]) -> str | None:
    """Say what a launch needs that the caller's environment does not have; None where nothing."""
    if launch.launcher == "mpirun" and launch.nodes > 1 and "SLURM_JOB_ID" not in ambient:
        return f"mpirun over {launch.nodes} nodes needs an allocation; try within salloc"
    return None


def clean(ambient: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment a job may see."""
    return {
        name: value
        for name, value in ambient.items()
        if _PASS.match(name) and not _OF_ANOTHER_RANK.match(name)
    }


def shell_line(
    made: Command, ambient: Mapping[str, str], which: Callable[[str], str | None]
) -> str:
    """Return the line that does the same in the caller's shell.

    Parameters
    ----------
    which : callable
        Finds a program on the caller's PATH, as `shutil.which` does; a program that the bare name
        leads to is written by its bare name.
    """
    misleading = [name for name in _MISLEADING if name in ambient and name not in made.env]
    unset = ["env", *(word for name in misleading for word in ("-u", name))] if misleading else []
    changed = [
        f"{name}={shlex.quote(value)}"
        for name, value in made.env.items()
        if ambient.get(name) != value
    ]
    launcher, *options = made.launcher
    engine, *rest = made.inner
    words = [
        _shortest(launcher, ("mpirun", "mpiexec"), which),
        *options,
        _shortest(engine, ("singularity", "apptainer"), which),
        *rest,
    ]
    return " ".join([*unset, *changed, shlex.join(words)])


def _shortest(program: str, names: Sequence[str], which: Callable[[str], str | None]) -> str:
    for name in (*names, Path(program).name):
        found = which(name)
        if found and Path(found).resolve() == Path(program).resolve():
            return name
    return program


def _mpi_of(site: SiteProfile, launch: Launch) -> SiteMpi:
    for mpi in value_of(site.mpis) or ():
        if mpi.name == launch.mpi:
            return mpi
    raise Refused(f"the site has no MPI called {launch.mpi!r}", where=f"site {site.name}")


def _family_of(mpi: SiteMpi) -> Family:
    family = value_of(mpi.library.family)
    if family is None:
        raise Refused(
            f"the family of {mpi.name} is not known, so its launcher's arguments are not either",
            where=mpi.prefix,
        )
    return family


def _srun(launch: Launch) -> list[str]:
    return [
        *("srun", "-N", str(launch.nodes), "-n", str(launch.ranks)),
        f"--ntasks-per-node={launch.ranks_per_node}",
        f"--mpi={launch.mpi_type or 'none'}",
    ]


def _openmpi(site: SiteProfile, launch: Launch) -> list[str]:
    cpus = value_of(site.cpus)
    mapping = f"ppr:{launch.ranks_per_node}:node" if launch.nodes > 1 else ""
    if cpus is None or launch.ranks_per_node > cpus:
        mapping += ":OVERSUBSCRIBE"
    words = ["-n", str(launch.ranks)]
    words += ["--map-by", mapping] if mapping else []
    if cpus is None or launch.ranks_per_node < cpus:
        # By default each of one or two ranks is bound to one core, and its threads with it.
        words += ["--bind-to", "none"]
    return words


def _hydra(launch: Launch, ambient: Mapping[str, str]) -> list[str]:
    words = ["-n", str(launch.ranks)]
    if launch.nodes > 1:
        return [*words, "-ppn", str(launch.ranks_per_node)]
    # Within an allocation it would have srun start even the ranks of its own node, and a library
    # that looks at Slurm's environment would take itself for srun's.
    return [*words, *(["-launcher", "fork"] if "SLURM_JOB_ID" in ambient else [])]
