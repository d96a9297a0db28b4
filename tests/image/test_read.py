"""Facts of whole root file systems: this host's against its own tools, made ones, the images'."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hpcenv.base.known import Known, Unknown, value_of
from hpcenv.base.record import dump_json, parse_json
from hpcenv.base.version import Version
from hpcenv.image.facts import ImageFacts
from hpcenv.image.loader import library_folders
from hpcenv.image.read import libc_version, os_release, read_facts
from hpcenv.image.rootfs import FolderRoot, open_rootfs


def test_this_host_is_what_its_own_tools_say() -> None:
    host = FolderRoot(Path("/"))
    release = platform.freedesktop_os_release()
    found = value_of(os_release(host))
    assert found is not None
    assert (found.id, found.version) == (release["ID"], release["VERSION_ID"])
    libc = os.confstr("CS_GNU_LIBC_VERSION")
    assert libc is not None and str(value_of(libc_version(host))) == libc.split()[1]
    facts = read_facts(host)
    assert value_of(facts.arch) == platform.machine()
    # Facts pass through a file and back: manifests carry them.
    assert parse_json(ImageFacts, dump_json(facts), "facts") == facts


def test_the_interpreters_version_is_read_from_itself() -> None:
    python = FolderRoot(Path("/"))
    said = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, text=True)
    facts = read_facts(python)
    assert str(value_of(facts.python)) == said.stdout.split()[1]


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_packages_of_a_virtual_environment(tmp_path: Path) -> None:
    site = "opt/venv/lib/python3.11/site-packages"
    head = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n\ntext\n"
    write(tmp_path, f"{site}/tensorflow_cpu-2.18.1.dist-info/METADATA", head.format("x", "2.18.1"))
    info = f"{site}/horovod-0.28.1+hpcenv.1.dist-info/METADATA"
    write(tmp_path, info, head.format("horovod", "0.28.1+hpcenv.1"))
    built = {"tensorflow": "2.15.1", "dummy": "none"}
    write(tmp_path, f"{site}/horovod/metadata.json", json.dumps(built))
    write(tmp_path, "opt/venv/pyvenv.cfg", "home = /usr/bin\nversion = 3.11.9\n")
    facts = read_facts(FolderRoot(tmp_path))
    assert value_of(facts.tensorflow) == Version.parse("2.18.1")
    assert value_of(facts.python) == Version.parse("3.11.9")
    assert isinstance(facts.horovod, Known)
    assert str(value_of(facts.horovod.value.version)) == "0.28.1+hpcenv.1"
    assert value_of(facts.horovod.value.tensorflow) == Version.parse("2.15.1")
    assert isinstance(facts.horovod.value.controllers, Unknown)


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"dummy": "none"}', '{"tensorflow": 3}'])
def test_a_broken_build_record_is_unknown(tmp_path: Path, text: str) -> None:
    site = "opt/venv/lib/python3.11/site-packages"
    write(tmp_path, f"{site}/horovod-0.28.1.dist-info/METADATA", "Name: h\nVersion: 0.28.1\n")
    write(tmp_path, f"{site}/horovod/metadata.json", text)
    facts = read_facts(FolderRoot(tmp_path))
    assert isinstance(facts.horovod, Known)
    built = facts.horovod.value.tensorflow
    assert isinstance(built, Unknown) or str(built.value) == "3"


def test_an_empty_folder_is_all_unknown_and_says_what_would_tell(tmp_path: Path) -> None:
    facts = read_facts(FolderRoot(tmp_path))
    for name in ("arch", "os", "libc", "python", "mpis", "tensorflow", "horovod"):
        fact = getattr(facts, name)
        assert isinstance(fact, Unknown), name
        assert fact.ask


def test_musl_is_named(tmp_path: Path) -> None:
    write(tmp_path, "lib/ld-musl-x86_64.so.1", "")
    libc = read_facts(FolderRoot(tmp_path)).libc
    assert isinstance(libc, Unknown) and "musl" in libc.why


def test_the_loaders_order_is_that_of_its_configuration(tmp_path: Path) -> None:
    write(tmp_path, "etc/ld.so.conf", "# first\ninclude ld.so.conf.d/*.conf\n/opt/last\n")
    write(tmp_path, "etc/ld.so.conf.d/b.conf", "/opt/b\n")
    write(tmp_path, "etc/ld.so.conf.d/a.conf", "/opt/a\ninclude /etc/ld.so.conf.d/a.conf\n")
    for folder in ("opt/a", "opt/b", "opt/last", "usr/lib/x86_64-linux-gnu", "usr/lib"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    assert library_folders(FolderRoot(tmp_path), "x86_64") == (
        "/opt/a",
        "/opt/b",
        "/opt/last",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib",
    )


def test_the_loaders_cache_names_the_folders_that_ldconfig_prints(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    shutil.copy("/etc/ld.so.cache", tmp_path / "etc/ld.so.cache")
    said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    folders = {str(Path(path).parent) for path in re.findall(r"=> (\S+)$", said, re.M)}
    assert folders
    for folder in folders:
        (tmp_path / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    assert folders <= set(library_folders(FolderRoot(tmp_path), "x86_64"))
    for junk in (b"", b"glibc-ld.so.cache1.1", b"glibc-ld.so.cache1.1" + b"\xff" * 4000):
        (tmp_path / "etc/ld.so.cache").write_bytes(junk)
        assert library_folders(FolderRoot(tmp_path), "x86_64")


@pytest.mark.image
def test_the_default_images_facts_are_read_in_a_second(default_image: Path) -> None:
    best = 9.0
    for _ in range(3):
        start = time.perf_counter()
        facts = read_facts(open_rootfs(default_image))
        best = min(best, time.perf_counter() - start)
    assert best < 1.0
    assert isinstance(facts.horovod, Known) and isinstance(facts.tensorflow, Known)
    assert value_of(facts.horovod.value.tensorflow) == facts.tensorflow.value
    assert value_of(facts.horovod.value.controllers) == {"mpi", "gloo"}
    assert isinstance(facts.mpis, Known) and len(facts.mpis.value) == 1
