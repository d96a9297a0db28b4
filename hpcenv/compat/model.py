"""The words of a judgement: outlook, finding, rule, verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from hpcenv.base.known import Known
from hpcenv.image.facts import ImageFacts
from hpcenv.launch.model import Launch, Mend
from hpcenv.site.model import SiteProfile


class Outlook(StrEnum):
    """What a launch will do, from best to worst."""

    WORKS = "works"
    SLOW = "works, slow path"
    NEVER_RUN = "expected, never run"
    UNKNOWN = "unknown"
    MAY_HANG = "may hang"
    SINGLETONS = "singletons"
    FAILS = "fails at start"

    @property
    def rank(self) -> int:
        """0 for the best."""
        return list(Outlook).index(self)


class Severity(StrEnum):
    """How much a finding matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What a rule has to say of one launch.

    Attributes
    ----------
    rule : str
        Its id, such as ``MPI003``.
    subject : str
        What it is about, in a few words.
    says : str
        One sentence.
    evidence : tuple of Known[str]
        What was read, and where.
    remedy : str
        To paste.
    mend : Mend, optional
        The remedy as data; a finding whose mend is applied no longer worsens the outlook.
    predicts : Outlook, optional
        What the launch will do because of it; None where it does not matter for the start.
    """

    rule: str
    severity: Severity
    subject: str
    says: str
    evidence: tuple[Known[str], ...]
    remedy: str
    predicts: Outlook | None = None
    mend: Mend | None = None


Check: TypeAlias = Callable[[SiteProfile, ImageFacts, Launch], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """A pure check and its page.

    Attributes
    ----------
    reads : frozenset of str
        The facts it reads, as dotted names (``site.libc``, ``image.mpis``).
    doc : str
        What `hpcenv explain` prints: the reason and the remedy.
    tables : tuple of str
        The tables beside the rule from which its numbers come, with their sources.
    """

    id: str
    title: str
    reads: frozenset[str]
    check: Check
    doc: str
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A launch, its findings, and the outlook that follows."""

    launch: Launch
    outlook: Outlook
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Verdict:
    """Every launch that the site offers, best first; the image's verdict is the first one's."""

    launches: tuple[Judged, ...]

    @property
    def outlook(self) -> Outlook:
        """The best launch's outlook; FAILS where the site offers none."""
        return self.launches[0].outlook if self.launches else Outlook.FAILS
