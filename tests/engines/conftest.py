"""A private engine, a small root file system, and an ordinary user to run both as."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .helpers import (
    DRIVER,
    ROOT,
    Installed,
    Person,
    Ran,
    Script,
    driver,
    install,
    system_c_library,
)

_CACHES = shutil.ignore_patterns("__pycache__")
PROGRAMS = ("sh", "bash", "env", "cat", "id", "ls", "touch", "rm", "sleep", "stat", "hostname")


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that other users can read too; pytest's own they cannot."""
    folder = Path(tempfile.mkdtemp(prefix="hpcenv-engines-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def installed(open_folder: Path) -> Installed:
    """An engine that the command line has installed, and what that took and touched."""
    before, began = system_c_library(), time.monotonic()
    done = install(open_folder / "data")
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - began
    return Installed(open_folder / "data/hpcenv/engines", seconds, before, system_c_library())


@pytest.fixture(scope="session")
def engines(installed: Installed) -> Path:
    """The folder for engines that holds it."""
    return installed.engines


@pytest.fixture(scope="session")
def program(engines: Path) -> Path:
    return engines / "bin/apptainer"


@pytest.fixture(scope="session")
def tree_tar(open_folder: Path) -> Path:
    """A root file system of a few programs of this host, one file of it owned by 0:42."""
    tree = open_folder / "tree-source"
    for folder in ("dev", "proc", "sys", "tmp", "var/tmp", "root", "etc", "mnt", "usr/bin", "home"):
        (tree / folder).mkdir(parents=True)
    (tree / "bin").symlink_to("usr/bin")
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found, f"{name} is not on this host"
        shutil.copy(found, tree / "usr/bin" / name)
        for library in _libraries(found):
            target = tree / library.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(library, target)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\nshadow:x:42:\n")
    for name in ("hosts", "hostname", "resolv.conf", "localtime", "shadow"):
        (tree / "etc" / name).touch()
    tar = open_folder / "tree.tar"
    pack = ("tar", "-C", tree, "--owner=0", "--group=0", "-cf", tar)
    subprocess.run([*pack, "--exclude=./etc/shadow", "."], check=True)
    shadow = ("tar", "-C", tree, "--owner=0", "--group=42", "--numeric-owner", "-rf", tar)
    subprocess.run([*shadow, "./etc/shadow"], check=True)
    return tar


def _libraries(program: str) -> list[Path]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = [word for line in told.splitlines() for word in line.split()]
    return [Path(word) for word in words if word.startswith("/")]


@pytest.fixture(scope="session")
def root_person(open_folder: Path) -> Person:
    if os.geteuid():
        pytest.skip("not root")
    home = open_folder / "root-home"
    home.mkdir()
    return Person("root", home, ROOT, 0, 0)


@pytest.fixture(scope="session")
def ordinary_person(open_folder: Path) -> Iterator[Person]:
    """An ordinary user with sub-ids: a new one under root, else oneself."""
    if os.geteuid():
        me = pwd.getpwuid(os.getuid())
        home = open_folder / "user-home"
        home.mkdir()
        yield Person(me.pw_name, home, ROOT, me.pw_uid, me.pw_gid)
        return
    with _new_user(open_folder, "with-ids", []) as person:
        yield person


@pytest.fixture(scope="session")
def person_without_ids(open_folder: Path) -> Iterator[Person]:
    """An ordinary user to whom nobody gave sub-ids."""
    if os.geteuid():
        pytest.skip("makes a user, so needs root")
    # A system account gets none.
    with _new_user(open_folder, "without-ids", ["--system"]) as person:
        yield person


@contextmanager
def _new_user(folder: Path, kind: str, options: list[str]) -> Iterator[Person]:
    name = f"hpcenv-{os.getpid()}-{kind}"[:31]
    home, tools = folder / f"home-{kind}", folder / f"tools-{kind}"
    words = ["useradd", "--create-home", "--home-dir", home, *options, name]
    subprocess.run(words, check=True, capture_output=True)
    try:
        user = pwd.getpwnam(name)
        # The checkout may lie where this user cannot read.
        shutil.copytree(ROOT / "hpcenv", tools / "hpcenv", ignore=_CACHES)
        shutil.copy(DRIVER, tools / "driver.py")
        subprocess.run(["chmod", "-R", "a+rX", tools], check=True)
        yield Person(name, home, tools, user.pw_uid, user.pw_gid)
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)
        shutil.rmtree(tools)


@pytest.fixture(params=["root", "ordinary user"])
def person(request: pytest.FixtureRequest) -> Person:
    kind = "root_person" if request.param == "root" else "ordinary_person"
    found: Person = request.getfixturevalue(kind)
    return found


@pytest.fixture
def tree(person: Person, tree_tar: Path) -> Iterator[Path]:
    """The small root file system, unpacked by that person."""
    folder = person.home / "work"
    folder.mkdir()
    os.chown(folder, person.uid, person.gid)
    person.unpack(tree_tar, folder / "tree")
    yield folder / "tree"
    person.remove(folder)


@pytest.fixture
def host_folder(open_folder: Path) -> Iterator[Path]:
    """A folder of the host that the engine is to bind things from."""
    folder = open_folder / "host"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def script(person: Person, program: Path, tree: Path) -> Script:
    """Run a script in the tree by `Apptainer.run`, as that person."""

    def go(text: str, **more: Any) -> Ran:
        asked = {"program": str(program), "tree": str(tree), "script": text, **more}
        done = person.run(*driver(person), stdin=json.dumps(asked))
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        return Ran(told["lines"], told["error"], told["seconds"])

    return go
