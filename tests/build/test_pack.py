"""The SIF: its bytes, and what squashfs-tools and apptainer make of it."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import IO

import pytest

from hpcenv.image import pack, sif

ABOUT = pack.About(
    arch="x86_64",
    epoch=1_700_000_000,
    definition="Bootstrap: scratch\n",
    labels={"org.opencontainers.image.title": "tïtle with “quotes”", "a": "b"},
    environment={"/.singularity.d/env/90-environment.sh": "export A='1 2'\n"},
    runscript='#!/bin/sh\nexec "$@"\n',
)


def feed(out: IO[bytes]) -> None:
    """A tree with a folder, files, a symbolic and a hard link, whose order is fixed."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name in ("usr", "usr/share"):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name, size in (("usr/a", 300_000), ("usr/share/ü", 5)):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid, member.gid = size, 0o640, 12, 34
            archive.addfile(
                member,
                io.BytesIO(bytes(range(256)) * (size // 256) + b"x" * (size % 256)),
            )
        for kind, name, target in (
            (tarfile.SYMTYPE, "bin", "usr"),
            (tarfile.LNKTYPE, "b", "usr/a"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.uid, member.gid = kind, target, 12, 34
            member.mode = 0o640
            archive.addfile(member)


def test_two_packs_give_equal_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        pack.pack(tmp_path / name, feed, ABOUT)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_another_content_has_another_uuid(tmp_path: Path) -> None:
    from dataclasses import replace

    found = set()
    for name, about in (("one", ABOUT), ("two", replace(ABOUT, definition="Bootstrap: x\n"))):
        pack.pack(tmp_path / name, feed, about)
        with (tmp_path / name).open("rb") as file:
            found.add(sif.read_descriptors(file)[0].id)
    assert len(found) == 2


def test_squashfs_tools_find_every_entry_with_owner_mode_and_time(tmp_path: Path) -> None:
    file = tmp_path / "x.sif"
    pack.pack(file, feed, ABOUT)
    with file.open("rb") as opened:
        _, table = sif.read_descriptors(opened)
    offset = sif.primary_partition(table).offset
    listed = subprocess.run(
        ["unsquashfs", "-o", str(offset), "-UTC", "-lln", file],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    split = [row.split(None, 5) for row in listed.splitlines()]
    rows = {path.removeprefix("squashfs-root"): rest for *rest, path in split}
    assert rows["/usr/a"][:2] == ["-rw-r-----", "12/34"] and rows["/usr/a"][2] == "300000"
    assert rows["/usr/a"][3:] == ["2023-11-14", "22:13"]  # date -u -d @1700000000
    assert "/usr/share/ü" in rows and "/bin -> usr" in rows
    assert rows["/b"][2] == "300000"


def test_a_failing_packer_is_told_and_leaves_no_process(tmp_path: Path) -> None:
    from hpcenv.base.errors import Outside

    def broken(out: IO[bytes]) -> None:
        out.write(b"this is no tar" * 1000)

    with pytest.raises(Outside, match="mksquashfs"):
        pack.pack(tmp_path / "x.sif", broken, ABOUT)


@pytest.mark.engine
def test_apptainer_reads_it(tmp_path: Path, apptainer: Path) -> None:
    file = tmp_path / "x.sif"
    pack.pack(file, feed, ABOUT)

    def said(*words: str) -> str:
        argv = [str(apptainer), *words, str(file)]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    listed = said("sif", "list")
    assert "Def.FILE" in listed and "FS (Squashfs/*System/amd64)" in listed
    about = json.loads(said("inspect", "--json", "--all"))["data"]["attributes"]
    assert about["labels"] == ABOUT.labels
    assert said("inspect", "--deffile").strip() == ABOUT.definition.strip()
    assert "2023-11-14 22:13:20" in said("sif", "header")


def test_targets_of_links_stay_as_they_are_long_absolute_and_not_ascii(tmp_path: Path) -> None:
    from hpcenv.build import layers

    tree = tmp_path / "tree"
    tree.mkdir()
    targets = {"long": "/usr/" + "x" * 120, "short": "/usr", "ü": "/usr/ü", "up": "../" + "y" * 130}
    for name, target in targets.items():
        (tree / name).symlink_to(target)
    argv = ["tar", "-c", "-C", tree, "--format=pax", "--sort=name", "."]
    tar = subprocess.run(argv, check=True, capture_output=True).stdout
    folder = tmp_path / "layer"
    folder.mkdir()
    index = layers.difference(layers.scan(io.BytesIO(tar)), {})
    layers.write_layer(folder, index, io.BytesIO(tar), ABOUT.epoch)
    file = tmp_path / "x.sif"
    pack.pack(file, lambda out: layers.write_tree([folder], out, ABOUT.epoch), ABOUT)
    with file.open("rb") as opened:
        offset = sif.primary_partition(sif.read_descriptors(opened)[1]).offset
    out = tmp_path / "out"
    subprocess.run(["unsquashfs", "-q", "-n", "-o", str(offset), "-d", out, file], check=True)
    assert {name: str((out / name).readlink()) for name in targets} == targets
