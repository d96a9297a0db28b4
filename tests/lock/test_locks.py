"""Lock files: exact, without a URL, held to their schema, their recipe and their site."""

from __future__ import annotations

import dataclasses
import json
import platform as host
import sys
from collections.abc import Iterable
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import Tag, sys_tags
from sites import mpi, site

from hpcenv.base.blobs import Blobs, Digest
from hpcenv.base.errors import BadFile, BadInput, Outside, Refused
from hpcenv.base.known import Unknown
from hpcenv.base.record import dump_json
from hpcenv.base.version import Version
from hpcenv.image.facts import Family
from hpcenv.lock.expect import expected_facts
from hpcenv.lock.fetch import fetch, missing
from hpcenv.lock.files import load_lock, lock_file, lock_schema, misfits, must_fit, save_lock
from hpcenv.lock.keep import Upgrade, locked
from hpcenv.lock.model import Artefact, Lock, MpiChoice, Release, Target
from hpcenv.lock.resolve import runtime, target_of
from hpcenv.lock.wheels import Platform
from hpcenv.recipe.load import load_recipe
from hpcenv.sources.mirrors import Mirrors

RECIPE = load_recipe("tensorflow-horovod")
SITE = site(mpi(Family.OPENMPI, "4.1.4"))


def deb(name: str, version: str) -> Artefact:
    path = f"pool/main/{name[0]}/{name}/{name}_{version}_amd64.deb"
    return Artefact("deb", "system", name, version, path, 10, Digest("a" * 64))


def a_lock(*more: Artefact) -> Lock:
    return Lock(
        schema=1,
        recipe=RECIPE,
        site="here",
        target=Target("debian:12", "bookworm", "x86_64", "3.11"),
        mpi=MpiChoice(Family.OPENMPI, Version.parse("4.1.4"), "deb", "the same series"),
        releases=(Release("bookworm", "2026-07-11T10:16:37Z", Digest("b" * 64)),),
        artefacts=(deb("libc6", "2.36-9+deb12u14"), deb("python3.11", "3.11.2-6+deb12u6"), *more),
        epoch=1_795_000_000,
    )


def test_a_lock_comes_back_as_it_was_and_holds_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "x.lock.json"
    save_lock(a_lock(), file)
    assert load_lock(file) == a_lock()
    jsonschema.validate(json.loads(file.read_text()), lock_schema())
    jsonschema.Draft202012Validator.check_schema(lock_schema())


def test_the_published_schema_is_the_one_that_is_read() -> None:
    published = Path(__file__).parents[2] / "docs/schemas/lock.schema.json"
    assert json.loads(published.read_text()) == lock_schema()


def test_the_same_lock_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_lock(a_lock(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_spoilt_lock_says_how_locks_are_made(tmp_path: Path) -> None:
    file = tmp_path / "x.lock.json"
    data = json.loads(dump_json(a_lock()))
    data["epoch"] = "yesterday"
    data["artefacts"][0]["url"] = "ftp://example.org/x"
    file.write_text(json.dumps(data))
    with pytest.raises(BadFile) as raised:
        load_lock(file)
    assert {problem.path for problem in raised.value.problems} == {"epoch", "artefacts[0].url"}
    assert raised.value.remedy and "hpcenv lock" in raised.value.remedy


def test_a_lock_that_fits_has_no_misfit() -> None:
    assert misfits(a_lock(), RECIPE, SITE) == ()
    must_fit(a_lock(), RECIPE, SITE, Path("x"))


def test_a_newer_point_release_on_the_site_still_fits() -> None:
    assert misfits(a_lock(), RECIPE, site(mpi(Family.OPENMPI, "4.1.6"))) == ()


@pytest.mark.parametrize(
    ("recipe", "profile", "says"),
    [
        (dataclasses.replace(RECIPE, description="x"), SITE, "the recipe changed in description"),
        (RECIPE, site(mpi(Family.MPICH, "4.0.2")), "asks for MPICH 4.0.2"),
        (RECIPE, site(mpi(Family.OPENMPI, "5.0.3")), r"asks for Open MPI 5\.0"),
        (RECIPE, site(mpi(Family.OPENMPI, "4.1.4"), name="there"), "for site here, not there"),
        (RECIPE, site(mpi(Family.OPENMPI, "4.1.4"), arch="aarch64"), "machine"),
        (RECIPE, site(), "no MPI"),
    ],
)
def test_a_lock_that_does_not_fit_says_why_and_what_to_type(recipe, profile, says) -> None:
    with pytest.raises(Refused, match=says) as raised:
        must_fit(a_lock(), recipe, profile, Path("x.lock.json"))
    assert raised.value.remedy and "hpcenv lock tensorflow-horovod" in raised.value.remedy
    assert raised.value.where == "x.lock.json"


def test_the_file_is_named_after_recipe_and_site() -> None:
    assert lock_file(RECIPE, SITE) == Path("tensorflow-horovod.here.lock.json")


NOWHERE = Mirrors(index="http://nowhere.invalid/simple")


def test_a_lock_that_fits_is_kept_without_the_network(tmp_path: Path) -> None:
    blobs, file = Blobs(tmp_path / "blobs"), tmp_path / "x.lock.json"
    before = a_lock(runtime(blobs))
    save_lock(before, file)

    def no_mirrors(profile: object) -> Mirrors:
        raise AssertionError("asked for mirrors")

    said: list[str] = []
    kept = locked(RECIPE, SITE, file, blobs, tmp_path, said.append, mirrors=no_mirrors)
    assert kept == before and said == []
    assert fetch(a_lock_without_debs(blobs), blobs, NOWHERE) == ()


def a_lock_without_debs(blobs: Blobs) -> Lock:
    return dataclasses.replace(a_lock(), artefacts=(runtime(blobs),))


def test_only_our_own_runtime_follows_hpcenv(tmp_path: Path) -> None:
    blobs, file = Blobs(tmp_path / "blobs"), tmp_path / "x.lock.json"
    old = Artefact("local", "runtime", "hpcenv-runtime", "0", "old.whl", 1, Digest("c" * 64))
    save_lock(a_lock(old), file)
    said: list[str] = []
    kept = locked(RECIPE, SITE, file, blobs, tmp_path, said.append)
    assert kept == a_lock(runtime(blobs)) == load_lock(file)
    assert "runtime" in said[0]
    assert blobs.has(kept.of("runtime")[0].sha256)


def test_an_upgrade_of_what_is_not_locked_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.lock.json"
    save_lock(a_lock(), file)
    with pytest.raises(BadInput, match=r"(?s)'libc'.*did you mean 'libc6'"):
        locked(
            RECIPE,
            SITE,
            file,
            Blobs(tmp_path / "b"),
            tmp_path,
            print,
            upgrade=Upgrade(packages=("libc",)),
        )


def test_a_fetch_that_finds_no_network_says_so_and_keeps_the_store_clean(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    wheel = Artefact("wheel", "python", "x", "1", "x-1-py3-none-any.whl", 3, Digest("d" * 64))
    with pytest.raises(Outside, match=r"nowhere\.invalid") as raised:
        fetch(dataclasses.replace(a_lock(), artefacts=(wheel,)), blobs, NOWHERE)
    assert raised.value.status == 3
    assert not blobs.root.exists()


def test_what_only_another_hpcenv_made_is_named(tmp_path: Path) -> None:
    old = Artefact("local", "runtime", "hpcenv-runtime", "0", "old.whl", 1, Digest("c" * 64))
    with pytest.raises(Outside, match=r"old\.whl"):
        fetch(dataclasses.replace(a_lock(), artefacts=(old,)), Blobs(tmp_path), Mirrors())


def test_what_this_hpcenv_makes_is_made_where_the_store_lacks_it(tmp_path: Path) -> None:
    ours = runtime(Blobs(tmp_path / "one"))
    other = Blobs(tmp_path / "other")
    fetch(dataclasses.replace(a_lock(), artefacts=(ours,)), other, NOWHERE)
    assert other.verified(ours.sha256)


def test_missing_is_what_the_store_lacks(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    lock = a_lock(runtime(blobs))
    assert {artefact.name for artefact in missing(lock, blobs)} == {"libc6", "python3.11"}


# -- what a lock asks for and promises -----------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ({"os": "debian:10"}, "debian:12, debian:13"),
        ({"python": "3.12"}, "the Python of debian:12 is 3.11"),
    ],
)
def test_an_os_or_python_that_is_not_to_be_had(base, says) -> None:
    recipe = dataclasses.replace(RECIPE, base=dataclasses.replace(RECIPE.base, **base))
    with pytest.raises(BadInput, match=says):
        target_of(recipe, SITE)


def test_a_machine_that_is_unknown_or_without_images_is_refused() -> None:
    with pytest.raises(Refused, match="ppc64le"):
        target_of(RECIPE, site(arch="ppc64le"))
    with pytest.raises(Refused, match="not known"):
        target_of(RECIPE, dataclasses.replace(SITE, arch=Unknown("?", "uname -m")))


@pytest.mark.parametrize(
    ("debian", "upstream"),
    [
        ("4.1.4-3+b1", "4.1.4"),
        ("2.36-9+deb12u14", "2.36"),
        ("1:4.3.0+really4.2.1-1", "4.2.1"),
        ("1:9.2p1-2", "9.2p1"),
        ("5.0.7~rc1-1", "5.0.7"),
        ("12.4+deb12u15", "12.4"),
    ],
)
def test_the_makers_version_within_debians(debian: str, upstream: str) -> None:
    assert deb("x", debian).upstream == Version.parse(upstream)


def test_promises_name_the_artefact_that_makes_them() -> None:
    wheel = Artefact(
        "wheel",
        "python",
        "tensorflow-cpu",
        "2.18.1",
        "tensorflow_cpu-2.18.1-x.whl",
        1,
        Digest("e" * 64),
    )
    facts = expected_facts(a_lock(wheel))
    assert facts.libc.value == Version.parse("2.36")
    assert facts.libc.how == "published" and facts.libc.where.startswith("libc6_2.36")
    assert facts.python.value == Version.parse("3.11.2")
    assert facts.tensorflow.value == Version.parse("2.18.1")
    (library,) = facts.mpis.value
    assert (library.soname, library.family.value) == ("libmpi.so.40", Family.OPENMPI)
    assert isinstance(facts.horovod, Unknown) and isinstance(facts.needs, Unknown)


def test_the_tags_of_this_host_are_those_that_packaging_finds() -> None:
    name, version = host.libc_ver()
    if name != "glibc" or sys.implementation.name != "cpython":
        pytest.skip("this host's Python is not one that images have")
    ours = Platform(
        f"{sys.version_info.major}.{sys.version_info.minor}",
        host.machine(),
        int(version.split(".")[1]),
    )
    assert _without_plain_linux(ours.tags()) == _without_plain_linux(sys_tags())


def _without_plain_linux(tags: Iterable[Tag]) -> list[Tag]:
    # Releases of packaging differ in where it stands; no index has such wheels.
    return [tag for tag in tags if not tag.platform.startswith("linux_")]


@given(st.integers(17, 60))
def test_a_newer_c_library_takes_every_wheel_that_an_older_takes(glibc: int) -> None:
    older, newer = (set(Platform("3.11", "x86_64", g).tags()) for g in (glibc, glibc + 1))
    assert older < newer
