"""ARCH001: the image's instruction set is the site's."""

from __future__ import annotations

from collections.abc import Iterator

from hpcenv.base.known import Unknown
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.words import missing, read
from hpcenv.image.facts import ImageFacts
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile

_SUBJECT = "architecture"


def _check(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    for what, fact in (("the site's", site.arch), ("the image's", image.arch)):
        if isinstance(fact, Unknown):
            yield missing("ARCH001", _SUBJECT, f"{what} architecture", fact)
    if isinstance(site.arch, Unknown) or isinstance(image.arch, Unknown):
        return
    if site.arch.value != image.arch.value:
        yield Finding(
            rule="ARCH001",
            severity=Severity.ERROR,
            subject=_SUBJECT,
            says=f"the image is for {image.arch.value}, the site is {site.arch.value}",
            evidence=read("site", site.arch) + read("image", image.arch),
            remedy="build the image for this site: hpcenv lock RECIPE --site SITE",
            predicts=Outlook.FAILS,
        )


ARCH001 = Rule(
    id="ARCH001",
    title="The image's instruction set is the site's",
    reads=frozenset({"site.arch", "image.arch"}),
    check=_check,
    doc="""\
A container shares the host's kernel and processor: a program for another instruction set ends
with "exec format error" before it starts. The site's is what `uname -m` says on a compute node
(login nodes may differ); the image's is read from the ELF header of its shell.""",
)
