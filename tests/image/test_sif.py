"""The SIF format against the program that defines it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_rootfs import make_sif, make_tree

from hpcenv.cli.settings import load
from hpcenv.image import sif
from hpcenv.image.rootfs import open_rootfs


@pytest.fixture(scope="module")
def apptainer(hpcenv: Callable[..., object]) -> str:
    hpcenv("engine", "install", "apptainer")
    return str(load().engines / "bin/apptainer")


@pytest.fixture(scope="module")
def built(apptainer: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder, and the SIF that apptainer made of it."""
    folder = tmp_path_factory.mktemp("sif")
    tree = folder / "tree"
    tree.mkdir()
    make_tree(tree)
    out = folder / "x.sif"
    done = subprocess.run([apptainer, "build", out, tree], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tree, out


@pytest.mark.engine
def test_descriptors_are_those_that_apptainer_lists(
    apptainer: str, built: tuple[Path, Path]
) -> None:
    with built[1].open("rb") as file:
        header, found = sif.read_descriptors(file)
    said = subprocess.run([apptainer, "sif", "list", built[1]], capture_output=True, text=True)
    rows = re.findall(r"^\s*(\d+)\s*\|.*?\|(\d+)-(\d+)\s*\|(\S+)", said.stdout, re.M)
    assert [(entry.id, entry.offset, entry.offset + entry.size) for entry in found] == [
        (int(number), int(start), int(end)) for number, start, end, _ in rows
    ]
    assert rows[sif.primary_partition(found).id - 1][3].startswith("FS")
    head = subprocess.run([apptainer, "sif", "header", built[1]], capture_output=True, text=True)
    assert str(header.id) in head.stdout
    assert Path(built[1]).read_bytes().startswith(header.pack())


@pytest.mark.engine
def test_files_are_those_of_the_folder(built: tuple[Path, Path]) -> None:
    tree, image = built
    root = open_rootfs(image)
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert root.read("/" + str(path.relative_to(tree)), 1 << 24) == path.read_bytes(), path


@pytest.mark.engine
def test_apptainer_reads_what_these_structures_write(apptainer: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("x")
    image = make_sif(tree, tmp_path / "y.sif", "gzip")
    said = subprocess.run([apptainer, "sif", "list", image], capture_output=True, text=True)
    assert said.returncode == 0 and "Squashfs/*System/amd64" in said.stdout, said.stdout
