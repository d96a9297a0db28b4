"""HVD001 and HVD002: the Horovod inside fits the TensorFlow inside, and can use MPI."""

from __future__ import annotations

from collections.abc import Iterator

from hpcenv.base.known import Known, value_of
from hpcenv.compat.model import Finding, Rule, Severity
from hpcenv.compat.rules.words import read
from hpcenv.image.facts import ImageFacts
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile

_SUBJECT = "Horovod"


def _built_for(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    horovod = value_of(image.horovod)
    if horovod is None:
        return
    built, there = horovod.tensorflow, image.tensorflow
    if not isinstance(built, Known) or not isinstance(there, Known):
        unknown = built if not isinstance(built, Known) else there
        assert not isinstance(unknown, Known)
        yield Finding(
            rule="HVD001",
            severity=Severity.WARNING,
            subject=_SUBJECT,
            says=f"whether Horovod fits this TensorFlow is not known: {unknown.why}",
            evidence=(),
            remedy=unknown.ask,
        )
    elif built.value.release[:2] != there.value.release[:2]:
        yield Finding(
            rule="HVD001",
            severity=Severity.ERROR,
            subject=_SUBJECT,
            says=f"Horovod was built for TensorFlow {built.value}; {there.value} is installed",
            evidence=read("built for TensorFlow", built) + read("TensorFlow", there),
            remedy="build the image again from its lock: hpcenv build LOCK",
        )


HVD001 = Rule(
    id="HVD001",
    title="Horovod was built for the TensorFlow that is installed",
    reads=frozenset({"image.horovod", "image.tensorflow"}),
    check=_built_for,
    doc="""\
Horovod's library is compiled against one TensorFlow, whose C++ interface changes with every minor
release. With another one, importing it ends with "undefined symbol" (horovod#656, #939, #3754);
pip happily installs a cached wheel that was built for another TensorFlow (horovod#4039, #2619).
For which one it was built stands in its metadata.json. This does not change how MPI starts, so
the outlook of a launch does not follow from it; `hpcenv validate-horovod` proves Horovod.""",
)


def _controllers(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    horovod = value_of(image.horovod)
    controllers = value_of(horovod.controllers) if horovod else None
    if horovod is None or controllers is None or "mpi" in controllers:
        return
    yield Finding(
        rule="HVD002",
        severity=Severity.WARNING,
        subject=_SUBJECT,
        says="this Horovod was built without MPI: under mpirun or srun each process stays alone",
        evidence=read("Horovod's controllers", horovod.controllers),
        remedy="build it with HOROVOD_WITH_MPI=1, or start with horovodrun --gloo",
    )


HVD002 = Rule(
    id="HVD002",
    title="Horovod can use MPI",
    reads=frozenset({"image.horovod"}),
    check=_controllers,
    doc="""\
Horovod's controllers are MPI and Gloo, each built in or not. Without MPI it does not see what
mpirun or srun started; only horovodrun with Gloo joins its processes. Which are there is read from
the library: calls of MPI, and Gloo's controller class.""",
)
