"""SITE001 and IMAGE001: what nothing can be said without."""

from __future__ import annotations

from collections.abc import Iterator

from hpcenv.base.known import Unknown, value_of
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.words import called, image_mpi, missing, site_mpi
from hpcenv.image.facts import ImageFacts
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile


def _site(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    if launch.launcher == "srun":
        if isinstance(site.slurm, Unknown):
            yield missing("SITE001", "the site's Slurm", "the site's Slurm", site.slurm)
        if launch.model == "hybrid":
            return
    if isinstance(site.mpis, Unknown):
        yield missing("SITE001", "the site's MPI", "the site's MPI", site.mpis)
        return
    host = site_mpi(site, launch)
    if host is None:
        unknown = Unknown(f"the profile has no MPI called {launch.mpi!r}", "hpcenv site show")
        yield missing("SITE001", "the site's MPI", f"the MPI {launch.mpi!r}", unknown)
    elif launch.launcher == "mpirun" and isinstance(host.launcher, Unknown):
        yield missing("SITE001", "the site's MPI", f"the launcher of {host.name}", host.launcher)


SITE001 = Rule(
    id="SITE001",
    title="The site's launcher is known",
    reads=frozenset({"site.mpis", "site.mpis.launcher", "site.slurm"}),
    check=_site,
    doc="""\
A launch names an MPI installation of the site, or Slurm. What a profile does not know of them
cannot be judged, and is never taken for a yes. `hpcenv site detect` on a login node with the
module loaded finds most; the rest is written into the profile by hand.""",
)


def _image(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    if isinstance(image.mpis, Unknown):
        yield missing("IMAGE001", "the image's MPI", "the image's MPI", image.mpis)
        return
    if not image.mpis.value:
        yield Finding(
            rule="IMAGE001",
            severity=Severity.ERROR,
            subject="the image's MPI",
            says="the image has no MPI library",
            evidence=(),
            remedy="take an image with MPI: hpcenv lock RECIPE --site SITE",
            predicts=Outlook.FAILS,
        )
        return
    first = image_mpi(image)
    families = {value_of(mpi.family) for mpi in image.mpis.value}
    if first is not None and len(families) > 1:
        others = ", ".join(mpi.file for mpi in image.mpis.value[1:])
        yield Finding(
            rule="IMAGE001",
            severity=Severity.INFO,
            subject="the image's MPI",
            says=(
                f"the image has several MPI libraries; judged is {called(first)} ({first.file}), "
                f"which the loader finds first, not {others}"
            ),
            evidence=(),
            remedy="remove the MPI that nothing uses, or see that its folder comes first",
        )


IMAGE001 = Rule(
    id="IMAGE001",
    title="The image's MPI is known",
    reads=frozenset({"image.mpis"}),
    check=_image,
    doc="""\
The MPI library of an image is looked for on its loader's path, in the usual prefixes and where
wheels put it. Where there are several, the first on the loader's path is judged: that is the one
that a program loads which asks for no other.""",
)
