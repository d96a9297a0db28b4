"""Scripts in trees, as root and as an ordinary user, by a real engine."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from .helpers import (
    ROOT,
    SIGNALS,
    Person,
    Script,
    driver,
    mounts_below,
    processes_with,
    unique_seconds,
    until,
)

pytestmark = [pytest.mark.engine, pytest.mark.network]


def test_is_root_with_the_owners_of_a_root_file_system(script: Script) -> None:
    ran = script("id -u; stat -c %u:%g /etc/shadow")
    assert (ran.error, ran.lines) == (None, ["0", "0:42"])


def test_the_network_is_cut(script: Script) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ran = script(
            "exec 2>&1\n"
            "bash -c 'exec 3<>/dev/tcp/192.0.2.1/80' || true\n"
            f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' || true\n"
        )
    assert "Network is unreachable" in ran.lines[0]
    # The loopback interface is there, and is not the host's.
    assert any("Connection refused" in line for line in ran.lines)


def test_binds_are_read_only_unless_said_otherwise(
    script: Script, tree: Path, host_folder: Path
) -> None:
    for name in ("ro", "rw"):
        (host_folder / name).mkdir()
        (host_folder / name).chmod(0o777)
        (host_folder / name / "there").write_text(f"{name}\n")
    binds = [
        (str(host_folder / "ro"), "/mnt", False),
        (str(host_folder / "rw"), "/new place/deep", True),
        (str(host_folder / "ro/there"), "/new place/file", False),
    ]
    ran = script(
        "exec 2>&1; cat /mnt/there '/new place/file'; touch /mnt/x || touch '/new place/deep/x'",
        binds=binds,
    )
    assert ran.error is None
    assert ran.lines[:2] == ["ro", "ro"]
    assert "Read-only file system" in ran.lines[2]
    assert (host_folder / "rw/x").exists()
    assert not (host_folder / "ro/x").exists()
    # What was made for the binds to be mounted on is gone again.
    assert not (tree / "new place").exists()


@pytest.mark.parametrize("name", ["with:colon", "with,comma", "with space", "with\\slash", "ü"])
def test_a_bind_may_have_any_name_on_the_host(script: Script, host_folder: Path, name: str) -> None:
    (host_folder / name).mkdir()
    (host_folder / name / "file").write_text("seen\n")
    assert script("cat /mnt/file", binds=[(str(host_folder / name), "/mnt", False)]).lines == [
        "seen"
    ]


def test_a_bind_through_a_link_out_of_the_tree_is_refused(script: Script, tree: Path) -> None:
    (tree / "run").symlink_to("/tmp")
    error = script("true", binds=[("/etc", "/run/x", False)]).error
    assert error is not None and error.startswith("2 ") and "symbolic link" in error


def test_the_environment_is_what_was_asked_for_and_no_more(script: Script) -> None:
    wanted = {"PLAIN": "a", "ODD": "$HOME `id` \"q\" 'r' \\ = , ü", "EMPTY": ""}
    ran = script("env", env={**wanted, "LANG": "C"})
    found = dict(line.split("=", 1) for line in ran.lines)
    basic = {"PATH", "HOME", "LANG", "PWD"}
    assert {name: found[name] for name in wanted} == wanted
    assert set(found) - set(wanted) - {"_", "SHLVL"} == basic
    assert found["LANG"] == "C"
    assert found["HOME"] == "/root"


def test_nothing_of_the_host_is_seen(
    script: Script, person: Person, tree: Path, open_folder: Path
) -> None:
    mark = person.home / "only-on-the-host"
    mark.touch()
    ran = script(
        f"ls -A /home /root /var/tmp; ls -A /tmp; hostname\nls {mark} {ROOT} {tree} 2>&1 || ls /dev"
    )
    text = "\n".join(ran.lines)
    assert text.count("No such file or directory") == 3
    # Where the engine itself lies below /tmp, an empty folder of its name is seen.
    listed = set(text.partition("localhost")[0].split()) - {open_folder.name}
    assert listed == {"/home:", "/root:", "/var/tmp:", "hpcenv-script"}
    devices = text.partition("localhost")[2].split()
    assert "null" in devices
    assert not any(Path("/sys/block", name).exists() for name in devices)


def test_what_a_script_writes_to_tmp_stays_out_of_the_tree(script: Script, tree: Path) -> None:
    ran = script("touch /tmp/a /var/tmp/b; echo kept >/etc/new")
    assert ran.error is None
    assert list((tree / "tmp").iterdir()) == list((tree / "var/tmp").iterdir()) == []
    assert (tree / "etc/new").read_text() == "kept\n"
    assert [entry.name for entry in tree.parent.iterdir()] == ["tree"]


def test_a_failed_script_says_its_last_lines(script: Script) -> None:
    ran = script("for i in 1 2 3; do echo line $i; done; echo reason >&2; (exit 7)\necho never")
    assert ran.error is not None and ran.error.startswith("3 ")
    assert "failed (7)" in ran.error
    assert "line 3" in ran.error and "reason" in ran.error
    assert "never" not in ran.lines


def test_a_script_does_not_wait_for_input(script: Script) -> None:
    assert script("cat; echo done").lines == ["done"]


def test_the_deadline_ends_all_of_it(script: Script, program: Path, tree: Path) -> None:
    word = unique_seconds()
    ran = script(f"sleep {word} & sleep {word}", deadline=1.0)
    assert ran.error is not None and "deadline" in ran.error
    assert 1.0 <= ran.seconds < 15.0
    until(lambda: not processes_with(word, program))
    assert [entry.name for entry in tree.parent.iterdir()] == ["tree"]


@pytest.mark.parametrize("how", SIGNALS)
def test_a_stopped_run_leaves_no_process_and_no_mount(
    person: Person, program: Path, tree: Path, how: str
) -> None:
    before, word = mounts_below(tree), unique_seconds()
    text = f"echo up; sleep {word} & sleep {word}"
    asked = {"program": str(program), "tree": str(tree), "script": text}
    process = person.start(*driver(person), stdin=json.dumps(asked))
    assert process.stderr is not None
    assert process.stderr.readline() == "up\n"
    assert processes_with(word, program)
    os.kill(process.pid, SIGNALS[how])
    process.communicate(timeout=30)
    until(lambda: not processes_with(word, program))
    assert mounts_below(tree) == before
    left = sorted(entry.name for entry in tree.parent.iterdir())
    if how != "kill -9":
        assert left == ["tree"]
    else:
        # Nobody was there to remove it; the next to use the folder knows whose it was.
        told = person.python(
            "from pathlib import Path; from hpcenv.base.publish import abandoned\n"
            f"print(*(p.name for p in abandoned(Path({str(tree.parent)!r}))))"
        )
        assert [*told.split(), "tree"] == left


def test_root_and_an_ordinary_user_pack_the_same_bytes(
    root_person: Person, ordinary_person: Person, tree_tar: Path
) -> None:
    code = (
        "import hashlib, shutil; from pathlib import Path\n"
        "from hpcenv.image import pack; from hpcenv.engines.userns import as_root_of_tree\n"
        "about = pack.About('x86_64', 1700000000, '', {}, {}, '')\n"
        f"feed = lambda out: shutil.copyfileobj(open({str(tree_tar)!r}, 'rb'), out)\n"
        "pack.pack(Path('packed.sif'), feed, about, as_root_of_tree())\n"
        "print(hashlib.sha256(Path('packed.sif').read_bytes()).hexdigest())"
    )
    assert root_person.python(code) == ordinary_person.python(code)
