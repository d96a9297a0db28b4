"""From a site, an image and the launches on offer to a verdict. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpcenv.compat.model import Finding, Judged, Outlook, Verdict
from hpcenv.compat.registry import RULES
from hpcenv.image.facts import ImageFacts
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile


def predict(site: SiteProfile, image: ImageFacts, launches: Iterable[Launch]) -> Verdict:
    """Judge each launch by every rule.

    A launch's outlook is the worst that its findings predict. A finding whose mend `hpcenv run`
    applies by itself (environment, arguments) is told but does not worsen it; a mend that is
    another launch does, since it is that other launch which works.

    Returns
    -------
    Verdict
        Best first; launches of one outlook in the order given.
    """
    judged = [judge(site, image, launch) for launch in launches]
    return Verdict(tuple(sorted(judged, key=lambda entry: entry.outlook.rank)))


def judge(site: SiteProfile, image: ImageFacts, launch: Launch) -> Judged:
    """Judge one launch."""
    findings = tuple(found for rule in RULES for found in rule.check(site, image, launch))
    outlooks = [found.predicts for found in findings if found.predicts and not mended(found)]
    outlook = max(outlooks, key=lambda each: each.rank, default=Outlook.WORKS)
    return Judged(launch, outlook, findings)


def mended(finding: Finding) -> bool:
    """Whether `hpcenv run` applies the finding's mend to the launch it belongs to."""
    mend = finding.mend
    return mend is not None and mend.use is None
