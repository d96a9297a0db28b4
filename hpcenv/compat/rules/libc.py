"""LIBC001: the image's C library carries the host's libraries (the bind model)."""

from __future__ import annotations

from collections.abc import Iterator

from hpcenv.base.known import Known, Unknown
from hpcenv.base.version import Version
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.words import missing, read, site_mpi
from hpcenv.image.facts import ElfNeed, ImageFacts
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile

_SUBJECT = "the host's libraries and the image's C library"
_RELR_SINCE = Version.parse("2.36")
"""glibc's NEWS for 2.36: GLIBC_ABI_DT_RELR."""


def too_new(need: ElfNeed, libc: Version) -> str | None:
    """Tell why a C library cannot give what a file needs; None where it can, or is not asked."""
    if need.version == "GLIBC_PRIVATE":
        return "it belongs to one build of the C library alone"
    if need.version == "GLIBC_ABI_DT_RELR":
        return None if libc >= _RELR_SINCE else f"only {_RELR_SINCE} and newer have it"
    if not need.version.startswith("GLIBC_"):
        return None  # of another library, which comes from the host as well
    return None if libc >= Version.parse(need.version[len("GLIBC_") :]) else "it is newer"


def _check(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    host = site_mpi(site, launch)
    if launch.model != "bind" or host is None:
        return
    if isinstance(image.libc, Unknown):
        yield missing("LIBC001", _SUBJECT, "the image's C library", image.libc)
    if isinstance(host.needs, Unknown):
        yield missing("LIBC001", _SUBJECT, f"what {host.name} needs of it", host.needs)
    if isinstance(image.libc, Unknown) or isinstance(host.needs, Unknown):
        return
    libc = image.libc.value
    bad = [(need, why) for need in host.needs.value if (why := too_new(need, libc)) is not None]
    if not bad:
        return
    worst, why = max(bad, key=lambda entry: _weight(entry[0]))
    yield Finding(
        rule="LIBC001",
        severity=Severity.ERROR,
        subject=_SUBJECT,
        says=f"{worst.file} needs {worst.version}; the image has glibc {libc}, and {why}",
        evidence=(
            *(Known(f"{n.file} needs {n.version}", "read", host.needs.where) for n, _ in bad[:8]),
            *read("the image's C library", image.libc),
        ),
        remedy=(
            "launch hybrid, or take an image whose C library is as new as the host's: "
            "hpcenv lock RECIPE --site SITE"
        ),
        predicts=Outlook.FAILS,
    )


def _weight(need: ElfNeed) -> tuple[int, Version]:
    number = need.version.removeprefix("GLIBC_")
    if number[:1].isdigit():
        return 0, Version.parse(number)
    return (2 if need.version == "GLIBC_PRIVATE" else 1), Version.parse("0")


LIBC001 = Rule(
    id="LIBC001",
    title="The image's C library carries the host's libraries",
    reads=frozenset({"site.mpis.needs", "image.libc"}),
    check=_check,
    doc="""\
A host library that is bound into an image runs on the image's C library. It names in
.gnu.version_r what it needs: with GLIBC_2.34 there, an image with glibc 2.31 ends with "version
`GLIBC_2.34' not found". The rule is: the image's C library must be at least the highest version
that the library and its dependencies need. Two names are no versions: GLIBC_PRIVATE (only the very
build of the C library that the file belongs to has it) and GLIBC_ABI_DT_RELR (since glibc 2.36;
apptainer#3041).

Remedy: the hybrid model, in which no host library enters; or an image at least as new.""",
)
