"""Steps as shell: what the real shell, dpkg and apt's own tool make of the lines."""

from __future__ import annotations

import shutil
import stat
import subprocess
import tempfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from locks import artefact, with_horovod

from hpcenv.build import steps
from hpcenv.build.plan import Bootstrap, BuildWheel, InstallWheels, WriteFile, plan

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)


@given(text, st.sampled_from([0o644, 0o755, 0o600]))
def test_a_file_is_written_as_it_is(content: str, mode: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sub dir/it's $HOME")
        lines = steps.shell(WriteFile("write-file", PurePosixPath(path), content, mode))
        subprocess.run(["sh", "-eu"], input=lines.encode(), check=True)
        assert path.read_bytes() == content.encode()
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_every_step_of_a_whole_plan_is_shell(tmp_path: Path) -> None:
    for stage in plan(with_horovod()).stages:
        for step in stage.steps:
            if not isinstance(step, Bootstrap):
                # -n: read, do not run.
                subprocess.run(["dash", "-n"], input=steps.shell(step).encode(), check=True)


def test_versions_and_names_cannot_leave_their_words() -> None:
    wheel = artefact("python", "x; touch /tmp/owned", "1'2")
    lines = steps.shell(InstallWheels("install-wheels", PurePosixPath("/opt/p"), (wheel,)))
    install = next(line for line in lines.splitlines() if " -m pip " in line)
    words = subprocess.run(
        ["sh", "-c", f'set -- {install}; printf "%s\\n" "$@"'], capture_output=True, text=True
    ).stdout.splitlines()
    assert words[-1] == "x; touch /tmp/owned==1'2"


@pytest.mark.skipif(shutil.which("dpkg-scanpackages") is None, reason="needs dpkg-dev")
def test_the_index_of_packages_says_what_dpkgs_own_tool_says(tmp_path: Path) -> None:
    control = tmp_path / "tree/DEBIAN"
    control.mkdir(parents=True)
    (control / "control").write_text(
        "Package: it\nVersion: 1:2.0-1\nArchitecture: all\nMaintainer: A <a@b.invalid>\n"
        "Depends: other (>= 1)\nDescription: one\n two\n .\n three\n"
    )
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["dpkg-deb", "-b", tmp_path / "tree", folder / "it_2.0-1_all.deb"], check=True)
    subprocess.run(["sh", "-ec", steps.INDEX], cwd=folder, check=True)
    theirs = subprocess.run(
        ["dpkg-scanpackages", "."], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    ours = fields((folder / "Packages").read_text())
    assert {name: ours[name] for name in ours} == {name: fields(theirs)[name] for name in ours}
    assert {"Filename", "Size", "SHA256", "Depends"} <= set(ours)


def fields(paragraph: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in paragraph.rstrip("\n").split("\n"):
        if line.startswith(" "):
            found[name] += "\n" + line
        else:
            name, _, value = line.partition(": ")
            found[name] = value
    return found


def test_a_wheel_that_does_not_do_what_is_expected_ends_the_build() -> None:
    """With an environment that is not there, each check alone fails."""
    from dataclasses import replace

    made = plan(with_horovod())
    (step,) = [s for s in made.stage("horovod").steps if isinstance(s, BuildWheel)]
    for name in step.expects:
        alone = replace(step, expects=(name,), prefix=PurePosixPath("/nonexistent"))
        # Less the first lines, which write the program of the ranks.
        script = steps.check_wheel(alone).partition("TF_CPP_MIN")[2].partition("\n")[2]
        done = subprocess.run(["sh", "-e"], input=script, capture_output=True, text=True)
        assert done.returncode != 0, script
