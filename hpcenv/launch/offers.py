"""Every way of launching an image that a site offers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from hpcenv.base.known import Unknown, value_of
from hpcenv.image.facts import Family, ImageFacts, Mpi, Pmi
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile


def offers(
    site: SiteProfile, image: ImageFacts, nodes: int, ranks_per_node: int
) -> tuple[Launch, ...]:
    """List each launcher of the site with each model.

    Hybrid: every MPI's mpirun and every type of `srun --mpi=`. Bind: every MPI's mpirun, and srun
    with those MPIs whose interface an MPI of the image shares. A site whose MPIs are not known is
    given one mpirun without a name, so that its verdict is "unknown" and not "none works".

    Parameters
    ----------
    nodes, ranks_per_node : int
        At least 1 each.
    """
    return tuple(_launches(site, image, nodes, ranks_per_node))


def _launches(
    site: SiteProfile, image: ImageFacts, nodes: int, ranks_per_node: int
) -> Iterator[Launch]:
    # Not known to run as root: take the case in which more can go wrong.
    rootless = value_of(site.privileged) is not True

    def launch(
        launcher: Literal["mpirun", "srun"],
        model: Literal["hybrid", "bind"],
        mpi: str | None = None,
        kind: str | None = None,
    ) -> Launch:
        pmi = _pmi(kind) if kind else None
        return Launch(launcher, model, rootless, nodes, ranks_per_node, mpi, pmi, kind)

    mpis = value_of(site.mpis) or ()
    types = srun_types(site)
    if isinstance(site.mpis, Unknown):
        yield launch("mpirun", "hybrid")
    for mpi in mpis:
        yield launch("mpirun", "hybrid", mpi.name)
    for kind in types:
        yield launch("srun", "hybrid", None, kind)
    for mpi in mpis:
        yield launch("mpirun", "bind", mpi.name)
        if _shares_interface(mpi.library, image):
            for kind in types:
                yield launch("srun", "bind", mpi.name, kind)


def srun_types(site: SiteProfile) -> tuple[str, ...]:
    """Return the types of `srun --mpi=` worth a row: pmix_vN only where there are several."""
    slurm = value_of(site.slurm)
    types = value_of(slurm.mpi_types) if slurm else None
    if not types:
        return ()
    versioned = {kind for kind in types if re.fullmatch(r"pmix_v\d+", kind)}
    hidden = versioned if "pmix" in types and len(versioned) == 1 else set()
    order = {"pmix": 0, "pmi2": 2, "none": 9}
    return tuple(
        sorted(types - hidden, key=lambda t: (1 if t in versioned else order.get(t, 5), t))
    )


def _pmi(kind: str) -> Pmi | None:
    if kind.startswith("pmix"):
        return Pmi.PMIX
    return Pmi.PMI2 if kind == "pmi2" else None


def _shares_interface(library: Mpi, image: ImageFacts) -> bool:
    family = value_of(library.family)
    families = {value_of(mpi.family) for mpi in value_of(image.mpis) or ()}
    known: set[Family] = {each for each in families if each is not None}
    return family is not None and any(each.mpich_abi == family.mpich_abi for each in known)
