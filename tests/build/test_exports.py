"""Containerfile and definition file: what they say, and what plain apptainer makes of it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from locks import lock, with_horovod

from hpcenv.base.blobs import Digest
from hpcenv.build import layers
from hpcenv.build.containerfile import containerfile
from hpcenv.build.definition import definition
from hpcenv.build.export import embed
from hpcenv.build.plan import plan
from hpcenv.image import sif
from hpcenv.lock.model import Lock
from hpcenv.lock.runtime_wheel import runtime_wheel

WRITERS = [containerfile, definition]


def ours(made: Lock) -> dict[Digest, bytes]:
    content = {"local": runtime_wheel().content, "patch": b"+ a line of a patch\n" * 7_000}
    return {
        artefact.sha256: content[artefact.kind]
        for artefact in made.artefacts
        if artefact.kind in content
    }


@pytest.mark.parametrize("writer", WRITERS)
def test_everything_that_goes_in_is_named_with_its_digest_and_no_host_is(writer: object) -> None:
    made = with_horovod()
    text = writer(plan(made), ours(made))  # type: ignore[operator]
    for artefact in made.artefacts:
        assert artefact.file.split("/")[-1] in text
        if artefact.kind not in ("local", "patch"):
            assert f"{artefact.sha256} " in text
    # In the runtime's sources, the name of a dialect.
    assert set(re.findall(r"https?://[\w.-]+", text)) == {"https://json-schema.org"}


def test_no_section_is_longer_than_apptainer_reads() -> None:
    made = with_horovod()
    text = definition(plan(made), ours(made))
    sections = re.split(r"^%", text, flags=re.MULTILINE)
    # bufio.MaxScanTokenSize of Go's standard library.
    assert max(len(section.encode()) for section in sections) < 64 << 10
    assert text.count("Bootstrap: scratch") == 2


def test_no_run_line_is_longer_than_a_shells_argument_may_be() -> None:
    made = with_horovod()
    text = containerfile(plan(made), ours(made))
    runs = re.split(r"^(?=[A-Z]+ )", text, flags=re.MULTILINE)
    # MAX_ARG_STRLEN of linux/binfmts.h.
    assert max(len(run.encode()) for run in runs) < 131_072


def test_every_run_line_is_shell() -> None:
    made = with_horovod()
    text = containerfile(plan(made), ours(made))
    runs = [
        part for part in re.split(r"^(?=[A-Z]+ )", text, flags=re.MULTILINE) if part[:4] == "RUN "
    ]
    assert len(runs) > 5
    for run in runs:
        joined = re.sub(r"\\\n", "", run[4:])
        subprocess.run(["dash", "-n"], input=joined.encode(), check=True)


def test_the_definition_takes_nothing_away_but_by_its_own_name() -> None:
    """Within %post the host's /tmp and home may be seen: apptainer binds them while it builds."""
    made = with_horovod()
    text = definition(plan(made), ours(made))
    removed = re.findall(r"^\s*(?:rm|find|unlink)\s.*$", text, re.MULTILINE)
    assert removed
    for line in removed:
        assert "*" not in line and "find" not in line.split()[0]
        words = [word for word in line.split()[1:] if not word.startswith("-")]
        assert all(
            word.startswith(('"$INPUTS', '"$REPOSITORY', "/mnt/", "/opt/")) for word in words
        )
    assert "/tmp" not in "".join(re.findall(r"^\s*(?:rm|mkdir|cd|tar|cp) .*$", text, re.MULTILINE))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200))
@example("{{ MIRRORS }} {{{{x}}}}\n% setup\n%post\n# comment\n'\\\n\\n$HOME `id` \"\n\r\nno end")
@example("a long line, " * 7 + "\n" + "of many\n" * 20_000)
def test_a_text_comes_out_of_the_file_as_it_went_in(text: str) -> None:
    patch = with_horovod().of("patch")[0]
    patch = replace(patch, sha256=Digest(hashlib.sha256(text.encode()).hexdigest()))
    with tempfile.TemporaryDirectory() as folder:
        pieces = embed([patch], {patch.sha256: text.encode()}, f"{folder}/in")
        script = "".join(pieces)
        # What apptainer takes for an argument of the build.
        assert not re.search(r"\{\{\s*\w+\s*\}\}", script)
        assert max(len(piece.encode()) for piece in pieces) < 64 << 10
        for _ in range(2):
            subprocess.run(["sh", "-eu"], input=script.encode(), check=True)
        assert (Path(folder) / "in" / patch.file).read_bytes() == text.encode()


def test_the_runtime_comes_out_of_the_file_byte_for_byte(tmp_path: Path) -> None:
    wheel = runtime_wheel()
    digest = Digest(hashlib.sha256(wheel.content).hexdigest())
    runtime = replace(lock().of("runtime")[0], sha256=digest, file=wheel.file)
    script = "".join(embed([runtime], {digest: wheel.content}, str(tmp_path / "in")))
    for _ in range(2):
        subprocess.run(["sh", "-eu"], input=script.encode(), check=True)
    assert [file.name for file in (tmp_path / "in").iterdir()] == [wheel.file]
    assert (tmp_path / "in" / wheel.file).read_bytes() == wheel.content
    changed = script.replace("hpcenv-train", "hpcenv-trein")
    assert subprocess.run(["sh", "-eu"], input=changed.encode(), capture_output=True).returncode


def test_values_of_the_environment_stand_as_they_are() -> None:
    made = plan(lock())
    wild = "a b 'c' \"d\" $HOME `id` ü"
    text = definition(replace(made, env={"WILD": wild}), ours(lock()))
    section = text.split("%environment\n")[1].split("%")[0]
    told = subprocess.run(
        ["sh", "-c", section + '\nprintf %s "$WILD"'], capture_output=True, text=True, check=True
    ).stdout
    assert told == wild


# Apptainer writes these itself into whatever it builds.
THEIRS = re.compile(
    r"etc/hosts|\.singularity\.d(/.*)?|\.(exec|run|shell|test)|environment|singularity"
)


@pytest.mark.image
@pytest.mark.network
def test_plain_apptainer_builds_the_definition_to_the_same_content(
    mpi_base_openmpi: Path, apptainer: Path, tmp_path: Path
) -> None:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    from hpcenv.sources.configured import detect_mirrors

    mirrors = detect_mirrors()
    store = mpi_base_openmpi.resolve().parent.parent.parent
    rendered = subprocess.run(
        [Path(sys.executable).with_name("hpcenv"), "render",
         mpi_base_openmpi.parent / "lock.json", "--format", "definition"],
        env={**os.environ, "HPCENV_STORE": str(store)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    file = tmp_path / "base.def"
    file.write_text(rendered)
    urls = " ".join(source.url for source in mirrors.apt)
    built = subprocess.run(
        [apptainer, "build",
         "--build-arg", f"MIRRORS={urls}",
         "--build-arg", f"INDEX={mirrors.index or PYPI_SIMPLE_ENDPOINT}",
         tmp_path / "theirs.sif", file],
        # Root here may lack a capability that apptainer asks for in %post.
        env={**os.environ, "APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    one, two = content(mpi_base_openmpi, tmp_path), content(tmp_path / "theirs.sif", tmp_path)
    assert {path for path in one.keys() ^ two.keys() if not THEIRS.fullmatch(path)} == set()
    differ = {path for path in one.keys() & two.keys() if one[path] != two[path]}
    assert {path for path in differ if not THEIRS.fullmatch(path)} == set()


def content(image: Path, work: Path) -> dict[str, layers.Entry]:
    """Every entry of an image, as the normaliser sees it; unpacked by squashfs-tools."""
    with image.open("rb") as file:
        offset = sif.primary_partition(sif.read_descriptors(file)[1]).offset
    tree = work / f"tree-of-{image.stem}"
    subprocess.run(
        ["unsquashfs", "-quiet", "-no-progress", "-o", str(offset), "-d", tree, image], check=True
    )
    argv = ["tar", "-c", "-C", tree, "--format=pax", "--sort=name", "--numeric-owner", "."]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        return layers.scan(tar.stdout)
