"""Stages and their keys: what a change of a lock rebuilds, and what it does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from locks import artefact, lock, with_horovod

from hpcenv.base.errors import BadInput
from hpcenv.build.plan import (
    BuildWheel,
    InstallWheels,
    Run,
    WriteFile,
    default_tag,
    keys,
    needed,
    plan,
)
from hpcenv.image.facts import Family
from hpcenv.lock.model import Lock


def changed(before: Lock, after: Lock) -> set[str]:
    """Names of the stages that have to be made again."""
    old, new = keys(plan(before)), keys(plan(after))
    return {name for name in new if old.get(name) != new[name]}


def other(made: Lock, name: str) -> Lock:
    """The same lock with another version of one package."""
    assert any(found.name == name for found in made.artefacts)
    return replace(
        made,
        artefacts=tuple(
            artefact(found.role, name, "2.0") if found.name == name else found
            for found in made.artefacts
        ),
    )


@pytest.mark.parametrize(
    ("name", "rebuilt"),
    [
        ("hpcenv-runtime", {"image"}),
        ("mlxtend", {"image"}),
        ("g++", {"horovod", "image"}),
        ("setuptools", {"horovod", "image"}),
        ("guard", {"horovod", "image"}),
        ("tensorflow-cpu", {"python", "horovod", "image"}),
        ("base-files", {"system", "python", "horovod", "image"}),
    ],
)
def test_a_change_rebuilds_what_stands_on_it(name: str, rebuilt: set[str]) -> None:
    made = with_horovod()
    assert changed(made, other(made, name)) == rebuilt


def test_the_same_lock_has_the_same_keys_and_another_date_none_of_them() -> None:
    made = with_horovod()
    assert changed(made, with_horovod()) == set()
    assert changed(made, replace(made, epoch=made.epoch + 1)) == set(keys(plan(made)))


def test_a_site_of_the_same_mpi_shares_all_but_the_last_stage() -> None:
    made = with_horovod()
    assert changed(made, replace(made, site="elsewhere")) == {"image"}


def test_without_horovod_there_is_no_builder() -> None:
    assert [stage.name for stage in plan(lock()).stages] == ["system", "python", "image"]


def test_the_builder_is_no_part_of_the_image() -> None:
    made = plan(with_horovod())
    image, builder = made.stage("image"), made.stage("horovod")
    assert image.parent == "python"
    assert image.takes == (("horovod", builder.keeps[0]),)
    assert not [step for step in image.steps if "compiler" in repr(step)]


@pytest.mark.parametrize(
    ("have", "wanted"),
    [
        (set(), {"system", "python", "horovod", "image"}),
        ({"system", "python", "horovod", "image"}, {"system", "python", "image"}),
        ({"system", "python", "image"}, {"system", "python", "image"}),
        ({"system", "python"}, {"system", "python", "horovod", "image"}),
    ],
)
def test_a_builder_is_needed_until_the_image_has_taken_from_it(
    have: set[str], wanted: set[str]
) -> None:
    assert needed(plan(with_horovod()), have.__contains__) == wanted


def test_the_runtime_is_installed_after_everything_large() -> None:
    steps = plan(with_horovod()).stage("image").steps
    wheels = [number for number, step in enumerate(steps) if isinstance(step, InstallWheels)]
    later = {type(step) for step in steps[wheels[-1] + 1 :]}
    assert later <= {WriteFile, Run}


def test_horovod_fails_unless_tensorflow_mpi_and_gloo_are_inside() -> None:
    steps = plan(with_horovod()).stage("horovod").steps
    (wheel,) = [step for step in steps if isinstance(step, BuildWheel)]
    assert wheel.expects == ("tensorflow", "mpi", "gloo")
    # facts: without these it links the C++ bindings, which Open MPI 5 has not.
    assert "-DOMPI_SKIP_MPICXX=1" in wheel.env["CXXFLAGS"]


def test_debians_mpich_is_found_under_the_name_of_its_abi() -> None:
    steps = plan(lock(family=Family.MPICH)).stage("system").steps
    (link,) = [step for step in steps if isinstance(step, Run)]
    assert "libmpich.so.12" in link.script and "libmpi.so.12" in link.script
    assert not [s for s in plan(lock()).stage("system").steps if isinstance(s, Run)]


def test_a_lock_without_pip_is_refused_with_the_line_to_add() -> None:
    made = lock()
    without = replace(made, artefacts=tuple(a for a in made.artefacts if a.name != "pip"))
    with pytest.raises(BadInput, match="no pip") as caught:
        plan(without)
    assert "pip" in (caught.value.remedy or "")


def test_the_manifest_tells_the_lock_and_the_labels_name_no_host() -> None:
    made = plan(with_horovod())
    files = {str(s.path): s.content for s in made.stage("image").steps if isinstance(s, WriteFile)}
    about = json.loads(files["/etc/hpcenv/manifest.json"])
    assert about["tensorflow"] == "2.18.1" and about["horovod"] == "0.28.1"
    assert {"name": "mpi4py", "version": "1.0"} in about["python"]
    assert about["stages"] == {n: k for n, k in keys(made).items() if n != "image"}
    assert made.labels["org.opencontainers.image.created"] == "2026-11-29T00:53:13Z"
    assert not [value for value in made.labels.values() if "://" in value]


def test_the_default_tag_tells_date_and_lock() -> None:
    one, two = default_tag(lock()), default_tag(lock(site="elsewhere"))
    assert one.startswith("2026.11.29-") and two.startswith("2026.11.29-")
    assert one != two
