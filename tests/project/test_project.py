"""The project's own promises: what the README says is there, and the wheel stands alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from hpcenv.cli.main import app

ROOT = Path(__file__).resolve().parents[2]


def commands() -> set[str]:
    """Every command of the command line, as it is typed."""
    top = typer.main.get_command(app)
    found = set()
    for name, command in top.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {sub}" for sub in inner} if inner else {name}
    return found


def test_the_readme_tells_of_every_command_and_of_no_other() -> None:
    text = (ROOT / "README.md").read_text()
    table = re.findall(r"^\| `hpcenv ([a-z-]+(?: [a-z-]+)?)", text, re.MULTILINE)
    assert set(table) == commands()


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=str)
def test_pages_name_only_commands_that_exist(page: Path) -> None:
    groups = {command.split()[0] for command in commands() if " " in command}
    for words in re.findall(r"hpcenv ([a-z]+(?:-[a-z]+)*)(?: ([a-z]+))?", code_of(page)):
        if words[0] in groups:
            assert " ".join(words) in commands(), f"hpcenv {' '.join(words)}"
        else:
            assert words[0] in commands(), f"hpcenv {words[0]}"


def code_of(page: Path) -> str:
    """What a page shows as code: between backticks, and indented by four."""
    text = page.read_text()
    indented = [line for line in text.splitlines() if line.startswith("    ")]
    return "\n".join([*re.findall(r"`([^`\n]+)`", text), *indented])


def test_the_budgets_keep_the_whole_under_45_minutes() -> None:
    areas = tomllib.loads((ROOT / "tests/areas.toml").read_text())
    run = re.search(
        r"^test:.*\n(?:\t.*\n)*?\t.*test\.py lint (.*)$", (ROOT / "Makefile").read_text(), re.M
    )
    assert run is not None
    assert sum(areas[name]["minutes"] for name in run[1].split()) <= 42  # and 3 for lint


def test_every_test_belongs_to_one_area() -> None:
    areas = tomllib.loads((ROOT / "tests/areas.toml").read_text())
    kinds = ["engine", "image", "mpi", "scheduler", "network", "campaign"]
    for chosen in range(2 ** len(kinds)):
        markers = {kind: bool(chosen >> i & 1) for i, kind in enumerate(kinds)}
        taking = [name for name, area in areas.items() if eval(area["select"], {}, markers)]
        assert len(taking) == 1, (markers, taking)


def test_ci_runs_make_test_and_nothing_else() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    doing = [line for line in lines if re.match(r"(exec )?(make|\./|python|bash|pip)", line)]
    assert doing == ["exec make test </dev/null"]


@pytest.mark.network
def test_the_wheel_works_in_an_empty_folder(tmp_path: Path) -> None:
    """As `uv tool install hpcenv` would have it: no checkout in sight."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT], check=True
    )
    (wheel,) = tmp_path.glob("hpcenv-*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    # The dependencies of this environment, hpcenv itself from the wheel.
    here = f"import site; site.addsitedir({str(Path(typer.__file__).parents[1])!r})"
    (site,) = venv.glob("lib/python3*/site-packages")
    subprocess.run([venv / "bin/pip", "install", "-q", "--no-deps", wheel], check=True)
    (site / "dependencies.pth").write_text(here)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {**os.environ, "HOME": str(empty), "PYTHONPATH": ""}
    env.pop("HPCENV_STORE", None)

    def hpcenv(*words: str) -> str:
        argv = [str(venv / "bin/hpcenv"), *words]
        return subprocess.run(
            argv, cwd=empty, env=env, check=True, capture_output=True, text=True
        ).stdout

    where = [str(venv / "bin/python"), "-c", "import hpcenv; print(hpcenv.__file__)"]
    found = subprocess.run(where, cwd=empty, env=env, check=True, capture_output=True, text=True)
    assert found.stdout.startswith(str(venv))
    assert hpcenv("recipe", "list").split() >= ["mpi-base"]
    assert "tensorflow-horovod" in hpcenv("recipe", "list")
    assert "example" in hpcenv("site", "list")
    assert "MPI001" in hpcenv("explain", "MPI001")
