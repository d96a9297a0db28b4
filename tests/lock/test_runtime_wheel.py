"""The runtime's wheel: equal bytes anywhere, and real installers take it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hpcenv
from hpcenv.lock.runtime_wheel import runtime_wheel

PACKAGE = Path(hpcenv.__file__).parent


def copy_of_the_package(folder: Path) -> Path:
    target = folder / "hpcenv"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copy(PACKAGE / "__init__.py", (target.mkdir(parents=True), target)[1])
    for part in ("base", "runtime"):
        shutil.copytree(PACKAGE / part, target / part, ignore=ignore)
    return target


def test_equal_bytes_twice_and_from_another_folder_at_another_time(tmp_path: Path) -> None:
    copy = copy_of_the_package(tmp_path)
    for file in copy.rglob("*"):
        os.utime(file, (1, 1))
        file.chmod(0o700)
    (copy / "base/__pycache__").mkdir()
    (copy / "base/__pycache__/x.cpython-311.pyc").write_bytes(b"noise")
    (copy / "host_side.py").write_text("not of the runtime")
    first = runtime_wheel()
    assert first == runtime_wheel()
    assert first == runtime_wheel(copy)


def test_a_changed_source_changes_the_version(tmp_path: Path) -> None:
    copy = copy_of_the_package(tmp_path)
    before = runtime_wheel(copy).version
    with (copy / "runtime/__init__.py").open("a") as file:
        file.write("# changed\n")
    after = runtime_wheel(copy).version
    assert before != after
    assert before.split("+")[0] == after.split("+")[0] == hpcenv.__version__


def test_its_record_is_that_of_pep_376() -> None:
    wheel = runtime_wheel()
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        names = archive.namelist()
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        rows = {row[0]: row[1:] for row in csv.reader(archive.read(record).decode().splitlines())}
        assert rows.keys() == set(names)
        for name in names:
            if name != record:
                content = archive.read(name)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
                assert rows[name] == [f"sha256={digest.decode().rstrip('=')}", str(len(content))]
    assert {name.split("/")[1] for name in names if name.startswith("hpcenv/")} == {
        "__init__.py",
        "base",
        "runtime",
    }


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_installers_take_it_and_it_imports_without_the_host_side(
    installer: str, tmp_path: Path
) -> None:
    wheel = runtime_wheel()
    file = tmp_path / wheel.file
    file.write_bytes(wheel.content)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    command = {
        "pip": [sys.executable, "-m", "pip", "--python", python, "install", "--no-index"],
        "uv": [Path(sys.executable).with_name("uv"), "pip", "install", "--python", python],
    }[installer]
    subprocess.run([*command, "--no-deps", "--quiet", file], check=True)
    environment = {"PATH": "/usr/bin:/bin"}
    code = (
        "import hpcenv.base.process, hpcenv.base.publish, hpcenv.runtime, importlib.metadata, sys\n"
        "print(importlib.metadata.version('hpcenv-runtime'))\n"
        "print('hpcenv.lock' in sys.modules, hpcenv.__file__)\n"
    )
    said = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[0] == wheel.version
    assert said.stdout.splitlines()[1].startswith(f"False {tmp_path}")
    for script in ("hpcenv-train", "hpcenv-stage"):
        assert (tmp_path / "env/bin" / script).is_file()
