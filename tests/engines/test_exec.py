"""Programs in images: arguments, environment and binds arrive as they were given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcenv.base.errors import BadInput
from hpcenv.engines.apptainer import Apptainer, bind_words, env_words
from hpcenv.engines.engine import Bind

from .helpers import Person

ENGINE = Apptainer(Path("/opt/bin/apptainer"))
VALUES = st.text(
    st.characters(exclude_characters="\0\r\x80\x81", exclude_categories=["Cs"]), max_size=12
)
ODD = st.text(st.sampled_from("$`'\"\\=,; \nab{}()*~%"), max_size=8)
NAMES = st.from_regex(r"HPCENV_T_[A-Za-z0-9_]{1,6}", fullmatch=True)


def test_the_plain_case_reads_like_what_people_type() -> None:
    words = ENGINE.exec_argv(
        Path("x.sif"),
        ["hpcenv-train", "run", "digits"],
        binds=[Bind(Path("/data"), PurePosixPath("/data"))],
        env={"OMPI_MCA_btl_vader_single_copy_mechanism": "none"},
        args=["--sharens"],
    )
    assert " ".join(words) == (
        "/opt/bin/apptainer exec --bind /data:/data:ro "
        "--env OMPI_MCA_btl_vader_single_copy_mechanism=none --sharens "
        "x.sif hpcenv-train run digits"
    )


@pytest.fixture(scope="module")
def root_tree(open_folder: Path, tree_tar: Path) -> Path:
    tree = open_folder / "exec-tree"
    tree.mkdir()
    subprocess.run(["tar", "-C", tree, "--no-same-owner", "-xf", tree_tar], check=True)
    return tree


@pytest.mark.engine
@pytest.mark.network
@settings(max_examples=40)
@given(env=st.dictionaries(NAMES, VALUES | ODD, min_size=1, max_size=6))
def test_any_value_arrives(program: Path, root_tree: Path, env: dict[str, str]) -> None:
    words = Apptainer(program).exec_argv(root_tree, ["env", "-0"], env=env)
    done = subprocess.run(words, capture_output=True, check=True)
    entries = done.stdout.decode().split("\0")
    found = dict(entry.split("=", 1) for entry in entries if entry.startswith("HPCENV_T_"))
    assert found == env


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.parametrize(
    "word", ["", "a b", "$HOME", "`id`", "'", '"', "\\", "*", "ü", "-x", "a\nb"]
)
def test_any_argument_arrives(program: Path, root_tree: Path, word: str) -> None:
    words = Apptainer(program).exec_argv(
        root_tree, ["bash", "-c", 'printf "<%s>" "$@"', "x", word, word]
    )
    assert subprocess.run(words, capture_output=True, text=True).stdout == f"<{word}>" * 2


@pytest.mark.engine
@pytest.mark.network
def test_the_programs_own_status_comes_back(program: Path, root_tree: Path) -> None:
    words = Apptainer(program).exec_argv(root_tree, ["bash", "-c", "exit 42"])
    assert subprocess.run(words).returncode == 42


@pytest.mark.engine
@pytest.mark.network
def test_an_ordinary_user_runs_a_sif(
    ordinary_person: Person, program: Path, root_tree: Path, open_folder: Path
) -> None:
    image = open_folder / "small.sif"
    subprocess.run([program, "--quiet", "build", image, root_tree], check=True)
    line = f"{program.with_name('singularity')} exec {image} id -u"
    if os.access("/dev/fuse", os.W_OK) and os.geteuid():
        done = ordinary_person.run("sh", "-c", line)
    elif os.geteuid() == 0:
        # A FUSE device that is open to everybody, in a mount namespace of this test alone.
        device = open_folder / "fuse"
        prepare = f"mknod {device} c 10 229; chmod 666 {device}; mount --bind {device} /dev/fuse"
        as_user = (
            f"setpriv --reuid={ordinary_person.uid} --regid={ordinary_person.gid} --clear-groups"
        )
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", f"{prepare}; cd /; HOME=/ {as_user} {line}"],
            capture_output=True,
            text=True,
        )
    else:
        pytest.skip("/dev/fuse is not open to this user: chmod 666 /dev/fuse")
    assert (done.returncode, done.stdout) == (0, f"{ordinary_person.uid}\n"), done.stderr


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.filterwarnings("ignore")
def test_spython_finds_and_drives_the_installed_engine(
    engines: Path, root_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client that is not ours: `singularity` beside `apptainer` is what such tools look for.
    monkeypatch.setenv("PATH", f"{engines}/bin:/usr/bin:/bin")
    from spython.main import get_client

    client = get_client(quiet=True)
    assert "1." in client.version()
    assert client.execute(str(root_tree), ["id", "-u"]).strip() == str(os.getuid())


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "A-B", "ü", "A\n"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="name of an environment variable"):
        env_words({name: "x"})


@pytest.mark.parametrize("lost", ["\0", "\r", "\x80", "\x81"])
def test_what_the_engine_would_lose_is_refused(lost: str) -> None:
    with pytest.raises(BadInput, match="would lose"):
        env_words({"A": f"x{lost}y"})


@pytest.mark.parametrize("target", ["/a:b", "/a,b", "/a\\"])
def test_a_target_that_cannot_be_said_is_refused(target: str) -> None:
    with pytest.raises(BadInput, match="cannot bind"):
        bind_words([Bind(Path("/x"), PurePosixPath(target))])
