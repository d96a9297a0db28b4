"""From a lock to stages. Pure: the same lock gives the same plan and the same keys."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from hpcenv.base.blobs import Digest
from hpcenv.base.errors import BadInput
from hpcenv.base.record import dump_json, encode
from hpcenv.image import manifest
from hpcenv.image.facts import Family
from hpcenv.lock.model import Artefact, Lock

PREFIX = PurePosixPath("/opt/hpcenv")
"""The Python environment of every image."""

_WHEELS = PurePosixPath("/opt/hpcenv-wheels")
_DATA = PurePosixPath("/usr/share/hpcenv/data")

FORMAT = 1
"""Of steps and normalising together: a change that gives other bytes for the same plan raises it,
so that a store's older stages are not taken for today's."""


@dataclass(frozen=True)
class Bootstrap:
    """Make a root file system of Debian packages."""

    kind: Literal["bootstrap"]
    suite: str
    debs: tuple[Artefact, ...]


@dataclass(frozen=True)
class InstallDebs:
    """Add Debian packages."""

    kind: Literal["install-debs"]
    debs: tuple[Artefact, ...]


@dataclass(frozen=True)
class InstallWheels:
    """Install wheels into the environment at `prefix`, which is made where it is missing."""

    kind: Literal["install-wheels"]
    prefix: PurePosixPath
    wheels: tuple[Artefact, ...]


@dataclass(frozen=True)
class BuildWheel:
    """Build a wheel from source into the folder `out`, with the interpreter at `prefix`.

    Attributes
    ----------
    env : mapping
        Environment of the build: compiler flags, feature switches.
    expects : tuple of str
        What the wheel must contain, else the build fails: ``tensorflow``, ``mpi``, ``gloo``.
    """

    kind: Literal["build-wheel"]
    prefix: PurePosixPath
    source: Artefact
    patches: tuple[Artefact, ...]
    env: Mapping[str, str]
    out: PurePosixPath
    expects: tuple[str, ...]


@dataclass(frozen=True)
class InstallBuilt:
    """Install a wheel that a stage built, from the folder it was taken into; remove the folder."""

    kind: Literal["install-built"]
    prefix: PurePosixPath
    name: str
    version: str
    folder: PurePosixPath


@dataclass(frozen=True)
class WriteFile:
    """Write a small file; `mode` is its permission bits, such as 0o644."""

    kind: Literal["write-file"]
    path: PurePosixPath
    content: str
    mode: int


@dataclass(frozen=True)
class TakeFiles:
    """Take members of a wheel (a zip file) into a folder."""

    kind: Literal["take-files"]
    wheel: Artefact
    members: tuple[str, ...]
    into: PurePosixPath


@dataclass(frozen=True)
class Run:
    """Run a shell script."""

    kind: Literal["run"]
    script: str


Step: TypeAlias = (
    Bootstrap
    | InstallDebs
    | InstallWheels
    | BuildWheel
    | InstallBuilt
    | WriteFile
    | TakeFiles
    | Run
)


@dataclass(frozen=True)
class Stage:
    """A unit of work and of cache.

    Attributes
    ----------
    parent : str, optional
        Name of the stage whose root file system it starts from.
    takes : tuple of (str, PurePosixPath)
        Stages and the paths copied from each, before the steps.
    keeps : tuple of PurePosixPath
        Where other stages take only these paths from it, and nothing starts from it, the paths:
        the rest is not kept. Empty: all of it is kept.
    """

    name: str
    parent: str | None
    steps: tuple[Step, ...]
    takes: tuple[tuple[str, PurePosixPath], ...] = ()
    keeps: tuple[PurePosixPath, ...] = ()


@dataclass(frozen=True)
class BuildPlan:
    """Stages in an order in which each comes after what it needs; `final` becomes the image.

    Attributes
    ----------
    env : mapping
        The image's environment; ``unset`` the variables that must not leak in from the host.
    labels : mapping
        For people and registries; they name no host.
    entry : str
        The shell script that running the image starts, without its first line.
    """

    stages: tuple[Stage, ...]
    final: str
    env: Mapping[str, str]
    unset: tuple[str, ...]
    labels: Mapping[str, str]
    entry: str
    epoch: int
    arch: str

    def stage(self, name: str) -> Stage:
        """Return the stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)


def inputs(stage: Stage) -> tuple[Artefact, ...]:
    """Return the artefacts that a stage's steps read, each once, in their order."""
    found: dict[str, Artefact] = {}
    for step in stage.steps:
        match step:
            case Bootstrap() | InstallDebs():
                used = step.debs
            case InstallWheels():
                used = step.wheels
            case BuildWheel():
                used = (step.source, *step.patches)
            case TakeFiles():
                used = (step.wheel,)
            case _:
                used = ()
        found.update((artefact.sha256, artefact) for artefact in used)
    return tuple(found.values())


def keys(plan: BuildPlan) -> dict[str, Digest]:
    """Return the cache key of every stage, by its name."""
    found: dict[str, Digest] = {}
    for stage in plan.stages:
        found[stage.name] = key(stage, found, plan.epoch)
    return found


def needed(plan: BuildPlan, have: Callable[[str], bool]) -> frozenset[str]:
    """Return the stages whose results the image needs, given which are there already.

    What a stage starts from is always needed, as the image is made of it; what it only takes files
    from, where it is still to be made.
    """
    found: set[str] = set()
    waiting = [plan.final]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        stage = plan.stage(name)
        waiting += [stage.parent] if stage.parent else []
        waiting += [] if have(name) else [other for other, _ in stage.takes]
    return frozenset(found)


def key(stage: Stage, of: Mapping[str, Digest], epoch: int) -> Digest:
    """Return the cache key of a stage, given the keys of the stages it needs."""
    needed = [name for name in (stage.parent, *(name for name, _ in stage.takes)) if name]
    content = {
        "format": FORMAT,
        "stage": encode(stage),
        "needs": {name: of[name] for name in needed},
        "epoch": epoch,
    }
    return Digest(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest())


def plan(lock: Lock) -> BuildPlan:
    """Make the plan of a lock.

    ``system``: the Debian packages. ``python``: the wheels. ``horovod``, where the lock has its
    source: compilers over ``python``, of which only the wheel is kept. ``image``: that wheel, the
    data, what an image says of itself, and the runtime, which changes most often, last.

    Raises
    ------
    BadInput
        If the lock has no pip to install wheels with.
    """
    if not any(wheel.name == "pip" for wheel in lock.of("python")):
        raise BadInput(
            "there is no pip among its Python packages, by which the others are installed",
            where=f"lock of {lock.recipe.name} for {lock.site}",
            remedy='add "pip" to  packages  in [python] of the recipe, and lock again',
        )
    system = Stage(
        "system",
        None,
        (Bootstrap("bootstrap", lock.target.suite, lock.of("system")), *_mpi_links(lock)),
    )
    python = Stage(
        "python",
        "system",
        (InstallWheels("install-wheels", PREFIX, lock.of("python")),),
    )
    built = _horovod(lock)
    before = (system, python, *built)
    base = BuildPlan(before, "python", _env(lock), _UNSET, {}, _ENTRY, lock.epoch, lock.target.arch)
    about = _manifest(lock, keys(base))
    labels = _labels(lock, about)
    image = Stage(
        "image",
        "python",
        (
            *(
                InstallBuilt("install-built", PREFIX, source.name, source.version, _WHEELS)
                for source in lock.of("source")
            ),
            *_data(lock),
            *(
                (InstallWheels("install-wheels", PREFIX, lock.of("runtime")),)
                if lock.of("runtime")
                else ()
            ),
            WriteFile("write-file", manifest.PATH, dump_json(about), 0o644),
            *own_files(base.env, base.unset, labels),
        ),
        takes=tuple((stage.name, _WHEELS) for stage in built),
    )
    return replace(base, stages=(*before, image), final="image", labels=labels)


def _mpi_links(lock: Lock) -> tuple[Run, ...]:
    # Debian's MPICH calls itself libmpich.so.12; what was built for the MPICH ABI asks for
    # libmpi.so.12. In the loader's own folder the link is found without any LD_LIBRARY_PATH.
    if lock.mpi.family is not Family.MPICH or lock.mpi.source != "deb":
        return ()
    folder = f"/usr/lib/{lock.target.arch}-linux-gnu"
    return (Run("run", f"ln -sf libmpich.so.12 {folder}/libmpi.so.12"),)


def _horovod(lock: Lock) -> tuple[Stage, ...]:
    sources = lock.of("source")
    if not sources:
        return ()
    step = BuildWheel(
        "build-wheel",
        PREFIX,
        sources[0],
        lock.of("patch"),
        env={
            "HOROVOD_WITH_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_PYTORCH": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_MPI": "1",
            "HOROVOD_WITH_GLOO": "1",
            # Without these it links the C++ bindings, which Open MPI 5 no longer has.
            "CXXFLAGS": "-DOMPI_SKIP_MPICXX=1 -DMPICH_SKIP_MPICXX=1",
            "LDFLAGS": "-Wl,--as-needed -Wl,--strip-all",
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        },
        out=_WHEELS,
        expects=("tensorflow", "mpi", "gloo"),
    )
    steps: tuple[Step, ...] = (step,)
    if lock.of("build-python"):
        steps = (InstallWheels("install-wheels", PREFIX, lock.of("build-python")), *steps)
    if lock.of("compiler"):
        steps = (InstallDebs("install-debs", lock.of("compiler")), *steps)
    return (Stage("horovod", "python", steps, keeps=(_WHEELS,)),)


def _data(lock: Lock) -> tuple[TakeFiles, ...]:
    wheels = {artefact.name: artefact for artefact in lock.of("data")}
    steps = []
    for data in lock.recipe.data:
        name = _normal(re.split(r"[^A-Za-z0-9._-]", data.wheel.strip(), maxsplit=1)[0])
        wheel = next(artefact for key, artefact in wheels.items() if _normal(key) == name)
        steps.append(TakeFiles("take-files", wheel, data.take, _DATA / data.name))
    return tuple(steps)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _env(lock: Lock) -> dict[str, str]:
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {
        "PATH": f"{PREFIX}/bin:{system}",
        "LC_ALL": "C.UTF-8",
        "PYTHONNOUSERSITE": "1",
    }
    if lock.recipe.framework.tensorflow:
        env["TF_CPP_MIN_LOG_LEVEL"] = "2"
    return env


_UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")

_ENTRY = """\
if [ $# -gt 0 ]; then
    exec "$@"
fi
exec /opt/hpcenv/bin/python
"""


def _manifest(lock: Lock, stages: Mapping[str, Digest]) -> manifest.Manifest:
    def packages(*found: Artefact) -> tuple[manifest.Package, ...]:
        return tuple(manifest.Package(artefact.name, artefact.version) for artefact in found)

    return manifest.Manifest(
        schema=1,
        name=lock.recipe.name,
        description=lock.recipe.description,
        site=lock.site,
        os=lock.target.os,
        arch=lock.target.arch,
        python_version=lock.target.python,
        lock=digest_of_lock(lock),
        epoch=lock.epoch,
        mpi=manifest.MpiInside(
            lock.mpi.family.value, str(lock.mpi.version), lock.mpi.source, lock.mpi.because
        ),
        debian=packages(*lock.of("system")),
        python=packages(*lock.of("python"), *lock.of("source"), *lock.of("runtime")),
        stages=stages,
        tensorflow=lock.recipe.framework.tensorflow,
        horovod=lock.recipe.framework.horovod,
    )


def manifest_of(plan: BuildPlan) -> str:
    """Return the text of the manifest that an image has in `manifest.PATH`."""
    steps = plan.stage(plan.final).steps
    return next(s.content for s in steps if isinstance(s, WriteFile) and s.path == manifest.PATH)


def digest_of_lock(lock: Lock) -> Digest:
    """Return the SHA-256 of a lock as it is written."""
    return Digest(hashlib.sha256(dump_json(lock).encode()).hexdigest())


def default_tag(lock: Lock) -> str:
    """Return the tag of an image that nobody named: the lock's date and its digest's beginning."""
    day = datetime.fromtimestamp(lock.epoch, UTC).strftime("%Y.%m.%d")
    return f"{day}-{digest_of_lock(lock)[:8]}"


def _labels(lock: Lock, about: manifest.Manifest) -> dict[str, str]:
    created = datetime.fromtimestamp(lock.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": about.name,
        "org.opencontainers.image.description": about.description,
        "org.opencontainers.image.created": created,
        "org.hpcenv.lock": about.lock,
        "org.hpcenv.site": about.site,
        "org.hpcenv.os": about.os,
        "org.hpcenv.mpi": f"{about.mpi.family} {about.mpi.version}",
        "org.hpcenv.python": about.python_version,
        "org.hpcenv.tensorflow": about.tensorflow or "",
        "org.hpcenv.horovod": about.horovod or "",
    }
    return {name: value for name, value in labels.items() if value}


def own_files(
    env: Mapping[str, str], unset: Sequence[str], labels: Mapping[str, str]
) -> tuple[Step, ...]:
    """The files by which Apptainer and Singularity know an image.

    The format is theirs; the texts are ours. ``99-base.sh`` must be there: it is after reading
    that file that Apptainer sets what ``APPTAINERENV_*`` asks for.
    """
    # Apptainer gives back the host's value of what is unset here, and keeps what is empty;
    # Python takes an empty variable for none.
    unsets = "".join(f"export {name}=\n" for name in unset)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    files = {
        "env/90-environment.sh": f"#!/bin/sh\n{unsets}{exports}",
        "env/99-base.sh": _BASE_SH,
        "actions/exec": f'{_ACTION}exec "$@"\n',
        "actions/run": f'{_ACTION}exec /.singularity.d/runscript "$@"\n',
        "actions/shell": f'{_ACTION}exec "${{SINGULARITY_SHELL:-/bin/bash}}" --norc "$@"\n',
        "runscript": f"#!/bin/sh\n{_ENTRY}",
        "startscript": "#!/bin/sh\n",
    }
    folder = PurePosixPath("/.singularity.d")
    text = json.dumps(labels, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    links = {
        ".exec": "actions/exec",
        ".run": "actions/run",
        ".shell": "actions/shell",
        "environment": "env/90-environment.sh",
        "singularity": "runscript",
    }
    return (
        *(WriteFile("write-file", folder / n, content, 0o755) for n, content in files.items()),
        WriteFile("write-file", folder / "labels.json", text, 0o644),
        Run(
            "run",
            "\n".join(
                [
                    "mkdir -p /.singularity.d/libs",
                    *(f"ln -sf .singularity.d/{file} /{name}" for name, file in links.items()),
                ]
            ),
        ),
    )


_BASE_SH = """\
#!/bin/sh
LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
PS1="${PS1:-Apptainer> }"
export LD_LIBRARY_PATH PS1
"""

_ACTION = """\
#!/bin/sh
for file in /.singularity.d/env/*.sh; do
    [ -f "$file" ] && . "$file"
done
"""
