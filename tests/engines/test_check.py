"""What is said before minutes are spent, and which engine is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.errors import Outside
from hpcenv.engines import userns
from hpcenv.engines.apptainer import FULL_BYTES, Apptainer, parse_version, unfit
from hpcenv.engines.inventory import is_newer
from hpcenv.engines.select import building_engine, candidates, usable_engine

from .helpers import Person

Hpcenv = Callable[..., "subprocess.CompletedProcess[str]"]


# What these programs print, as their issue trackers quote it.
@pytest.mark.parametrize(
    ("text", "product", "release"),
    [
        ("apptainer version 1.4.5\n", "apptainer", (1, 4, 5)),
        ("apptainer version 1.3.0-1.el8\n", "apptainer", (1, 3, 0)),
        ("singularity-ce version 4.1.2-jammy\n", "singularity-ce", (4, 1, 2)),
        ("singularity version 3.8.7-1.el7\n", "singularity", (3, 8, 7)),
        ("2.6.1-dist\n", None, ()),
        ("bash: apptainer: command not found\n", None, ()),
    ],
)
def test_versions_as_the_programs_print_them(
    text: str, product: str | None, release: tuple[int, ...]
) -> None:
    found = parse_version(text)
    assert (found and found[0], found[1].release if found else ()) == (product, release)


@pytest.mark.parametrize(
    ("sysctls", "named", "mended"),
    [
        ({"kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone is 0", "=1"),
        ({"user/max_user_namespaces": "0"}, "max_user_namespaces is 0", "=15000"),
        (
            {
                "kernel/apparmor_restrict_unprivileged_userns": "1",
                "user/max_user_namespaces": "96364",
            },
            "AppArmor",
            "=0",
        ),
        ({"user/max_user_namespaces": "96364"}, "no setting says why", "ask the site"),
    ],
)
def test_names_the_setting_that_forbids_namespaces(
    sysctls: dict[str, str], named: str, mended: str
) -> None:
    complaint = userns.explain_no_namespaces(sysctls)
    assert named in complaint.says
    assert mended in complaint.remedy


def test_sub_ids_as_useradd_and_usermod_write_them() -> None:
    text = "alice:100000:65536\n1002:165536:65536\nbob:231072:1000\nbob:300000:65536\n"
    assert userns.first_block(text, "alice", 1001) == 65536
    assert userns.first_block(text, "carol", 1002) == 65536
    # unshare and the engine take the first line alone.
    assert userns.first_block(text, "bob", 1003) == 1000
    assert userns.first_block(text, "alic", 1004) == 0
    assert userns.first_block("", "alice", 1001) == 0


@given(st.text(max_size=80))
def test_any_text_in_a_sub_id_file_is_survived(text: str) -> None:
    assert userns.first_block(text, "alice", 1001) >= 0


def test_space_and_noexec() -> None:
    work = Path("/scratch/trees")
    assert unfit(work, FULL_BYTES, noexec=False) is None
    full = unfit(work, FULL_BYTES - 1, noexec=False)
    assert full is not None and "is full" in full.says
    noexec = unfit(work, FULL_BYTES, noexec=True)
    assert noexec is not None and "noexec" in noexec.says


@pytest.mark.parametrize(
    ("newest", "version", "newer"),
    [
        ("1.4.5-2", "1.4.5-2", False),
        ("1.4.5-2", "1.4.5-1", True),
        ("1.4.5-2", "1.4.5", False),
        ("1.10.0-1", "1.9.3-1", True),
        ("1.4.5-2", "1.5.0", False),
    ],
)
def test_newer(newest: str, version: str, newer: bool) -> None:
    assert is_newer(newest, version) is newer


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_real_noexec_and_full_folder_is_said(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from hpcenv.engines.apptainer import Apptainer\n"
        f"found = Apptainer(Path('/nonexistent')).check_run(Path({str(tmp_path)!r}))\n"
        "print(*(complaint.says for complaint in found))"
    )
    for options, word in (("size=1m,exec", "is full"), ("size=1m,noexec", "noexec")):
        mount = f"mount -t tmpfs -o {options} none {tmp_path}"
        done = subprocess.run(
            [
                "unshare",
                "--mount",
                "sh",
                "-ec",
                f'{mount}; exec "$@"',
                "x",
                sys.executable,
                "-c",
                code,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert word in done.stdout


def test_a_user_without_sub_ids_is_told(person_without_ids: Person) -> None:
    told = person_without_ids.python(
        "from hpcenv.engines.userns import no_sub_ids; c = no_sub_ids(); print(c.says, c.remedy)"
    )
    assert "no sub-ids in /etc/subuid" in told
    assert "usermod --add-subuids" in told and person_without_ids.name in told


def test_a_user_with_sub_ids_is_not(ordinary_person: Person) -> None:
    code = "from hpcenv.engines.userns import no_sub_ids; print(no_sub_ids())"
    assert ordinary_person.python(code) == "None\n"


def test_a_kernel_without_namespaces_is_told() -> None:
    # In a namespace of its own, whose limit is 0 from then on.
    words = ["unshare", "--user", "--map-user=1000", "--keep-caps", "sh", "-ec"]
    code = "from hpcenv.engines.userns import no_namespaces; c = no_namespaces(); print(c.says)"
    limit = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    done = subprocess.run(
        [*words, limit, "x", sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "user.max_user_namespaces is 0" in done.stdout


def test_without_an_engine_it_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Outside, match="no container engine") as raised:
        usable_engine(tmp_path)
    assert raised.value.remedy == "hpcenv engine install"


def test_a_broken_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "apptainer"
    broken.write_text("#!/bin/sh\necho 'error while loading shared libraries' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Outside) as raised:
        usable_engine(tmp_path / "none")
    assert f"{broken} does not start" in str(raised.value)


@pytest.mark.engine
@pytest.mark.network
def test_path_comes_first_and_nothing_twice(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{engines}/bin:/usr/bin:/bin")
    assert [engine.program for engine in candidates(engines)] == [engines / "bin/apptainer"]
    (tmp_path / "singularity").symlink_to(engines / "bin/singularity")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [engine.program for engine in candidates(engines)] == [tmp_path / "singularity"]


@pytest.mark.engine
@pytest.mark.network
def test_a_broken_one_on_path_is_passed_over(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert building_engine(engines, tmp_path) == Apptainer(engines / "bin/apptainer")


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.skipif(os.geteuid() != 0, reason="is about root, with another /dev")
def test_root_without_loop_devices_is_told_but_can_build(program: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from hpcenv.engines.apptainer import Apptainer\n"
        f"e = Apptainer(Path({str(program)!r}))\n"
        "print([c.says for c in e.check()], [c.says for c in e.check_run(Path('/tmp'))])"
    )
    bare = f"cp -a /dev/null /dev/urandom {tmp_path}; mount --bind {tmp_path} /dev"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", f'{bare}; exec "$@"', "x", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "there is no loop device" in done.stdout
    assert done.stdout.endswith("] []\n")


@pytest.mark.engine
@pytest.mark.network
def test_a_user_who_may_not_use_fuse_is_told_but_can_build(
    ordinary_person: Person, program: Path
) -> None:
    if os.access("/dev/fuse", os.W_OK) and os.geteuid():
        pytest.skip("/dev/fuse is open to this user")
    mode = oct(Path("/dev/fuse").stat().st_mode & 0o777)
    told = ordinary_person.python(
        "from pathlib import Path; from hpcenv.engines.apptainer import Apptainer\n"
        f"e = Apptainer(Path({str(program)!r}))\n"
        "print([c.says for c in e.check()], [c.says for c in e.check_run(Path('.'))])"
    )
    expected = "[]" if mode == "0o666" else "['/dev/fuse is not open to this user']"
    assert told == f"{expected} []\n"


@pytest.mark.engine
@pytest.mark.network
def test_the_list_says_what_there_is_and_what_is_newer(
    hpcenv: Hpcenv, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(engines.parents[1]))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (engine,) = json.loads(hpcenv("engine", "list", "--json", "--check").stdout)["engines"]
    assert engine["name"] == "apptainer"
    assert engine["source"] == "private"
    assert engine["path"] == str(engines / "bin/apptainer")
    assert engine["used"] is True
    assert "newer" not in engine, "it was installed a minute ago"
    assert engine["age_days"] >= 0
    text = hpcenv("engine", "list").stdout
    assert f"* apptainer {engine['version']}  private" in text


def test_an_unknown_engine_is_bad_input(hpcenv: Hpcenv) -> None:
    done = hpcenv("engine", "install", "podman", status=2)
    assert "'podman'" in done.stderr and "Traceback" not in done.stderr


def test_the_list_without_an_engine_says_how_to_get_one(
    hpcenv: Hpcenv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    done = hpcenv("engine", "list")
    assert done.stdout == ""
    assert "hpcenv engine install" in done.stderr
