"""What the choice takes, the rules must call good, from a lock alone: two ways to one answer."""

from __future__ import annotations

import dataclasses

import pytest
from test_locks import a_lock

from hpcenv.base.known import Known
from hpcenv.base.version import Version
from hpcenv.compat.model import Outlook
from hpcenv.compat.predict import predict
from hpcenv.image.facts import Family
from hpcenv.launch.offers import offers
from hpcenv.lock.choose import match_site
from hpcenv.lock.expect import expected_facts
from hpcenv.lock.menu import Candidate, menu
from hpcenv.lock.model import MpiChoice, Target
from hpcenv.site.model import SiteProfile
from hpcenv.site.profile import load_site

TARGETS = (
    Target("debian:12", "bookworm", "x86_64", "3.11"),
    Target("debian:13", "trixie", "x86_64", "3.13"),
)
SITES = [
    *(("debian-12-openmpi", v) for v in ("4.0.3", "4.1.4", "4.1.8", "5.0.3", "5.0.7", "5.0.11")),
    *(("debian-12-mpich", v) for v in ("3.4.2", "4.0.2", "4.1.1", "4.2.1", "4.3.2")),
]


def outlook(profile: SiteProfile, target: Target, candidate: Candidate) -> Outlook:
    choice = MpiChoice(Family(candidate.family), candidate.version, candidate.source, "test")
    facts = expected_facts(dataclasses.replace(a_lock(), target=target, mpi=choice))
    return predict(profile, facts, offers(profile, facts, 1, 2)).outlook


def with_version(profile: SiteProfile, version: str) -> SiteProfile:
    first = profile.mpis.value[0]
    library = dataclasses.replace(
        first.library, version=Known(Version.parse(version), "declared", "test")
    )
    first = dataclasses.replace(first, library=library)
    return dataclasses.replace(profile, mpis=Known((first,), "declared", "test"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.suite)
@pytest.mark.parametrize(("name", "version"), SITES)
def test_what_is_taken_for_a_site_is_predicted_to_work(
    name: str, version: str, target: Target
) -> None:
    profile = with_version(load_site(name), version)
    candidate, _ = match_site(profile, menu(target.os))
    assert outlook(profile, target, candidate) is Outlook.WORKS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.suite)
def test_a_launcher_older_than_any_measured_gets_no_more_than_a_hope(target: Target) -> None:
    profile = with_version(load_site("debian-12-mpich"), "3.1.4")
    candidate, _ = match_site(profile, menu(target.os))
    assert outlook(profile, target, candidate) in (Outlook.NEVER_RUN, Outlook.UNKNOWN)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.suite)
@pytest.mark.parametrize("name", ["debian-12-openmpi", "debian-12-mpich"])
def test_nothing_of_the_other_family_is_predicted_to_work(name: str, target: Target) -> None:
    profile = load_site(name)
    for candidate in menu(target.os):
        if candidate.family not in name:
            assert outlook(profile, target, candidate) in (Outlook.SINGLETONS, Outlook.FAILS)
