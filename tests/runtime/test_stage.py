"""Staging on one rank: what is copied, what is refused, and what a kill leaves."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.errors import Failure, Outside
from hpcenv.base.publish import remove
from hpcenv.runtime.ranks import Agreed, OneRank
from hpcenv.runtime.stage import manifest, transfer
from hpcenv.runtime.stage.copy import Copied, copy, stage_for_node
from hpcenv.runtime.stage.manifest import Entry
from tests.runtime.trees import assert_same, make_tree


def test_a_tree_is_copied_whole_and_read_once(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "node/target"
    size = make_tree(source)
    copied = copy(source, target, OneRank(), chunk=65_536)
    assert_same(source, target)
    assert copied.bytes == copied.bytes_read == size
    assert (copied.files, copied.folders, copied.links) == (6, 5, 3)
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    # sha256sum agrees with the manifest.
    for entry in manifest.load(target / manifest.NAME) or []:
        if entry.kind == "file":
            said = subprocess.run(
                ["sha256sum"], stdin=(target / entry.path).open("rb"), capture_output=True
            )
            assert said.stdout.split()[0].decode() == entry.sha256


def test_a_second_time_nothing_is_read(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    make_tree(source)
    copy(source, target, OneRank())
    again = copy(source, target, OneRank())
    assert (again.bytes_read, again.files_read) == (0, 0)
    # A copy is a source like any other; the manifest is not a part of it.
    other = copy(target, tmp_path / "other", OneRank())
    assert other.files == again.files
    assert_same(source, tmp_path / "other")


def test_what_lies_in_the_way_is_never_touched(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    make_tree(source)
    target.mkdir()
    (target / "mine").write_text("x")
    with pytest.raises(Agreed, match="something else lies") as caught:
        copy(source, target, OneRank())
    assert caught.value.status == 2
    assert [path.name for path in target.iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_an_older_copy_and_a_changed_copy_are_told_apart(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    make_tree(source)
    copy(source, target, OneRank())
    (target / "big").write_bytes(b"spoilt")
    with pytest.raises(Agreed, match="1 of the copy's files were changed since, 'big'"):
        copy(source, target, OneRank())
    (source / "new").write_text("x")
    with pytest.raises(Agreed, match="older state of the source"):
        copy(source, target, OneRank())


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("absolute link", "out -> /etc leads out of the tree"),
        ("link up", "a/out -> ../../x leads out of the tree"),
        ("link through a link", "hop/out -> ../.. leads out"),
        ("pipe", "out is no file, folder or symbolic link"),
        ("file", "is not a folder"),
        ("nothing", "is not there"),
    ],
)
def test_what_cannot_be_staged_is_named(tmp_path: Path, kind: str, says: str) -> None:
    source = tmp_path / "source"
    make_tree(source)
    if kind == "absolute link":
        (source / "out").symlink_to("/etc")
    elif kind == "link up":
        (source / "a/out").symlink_to("../../x")
    elif kind == "link through a link":
        (source / "hop").mkdir()
        (source / "hop/out").symlink_to("../..")
    elif kind == "pipe":
        os.mkfifo(source / "out")
    elif kind == "file":
        source = source / "big"
    else:
        source = tmp_path / "nix"
    with pytest.raises(Agreed, match="staged") as caught:
        copy(source, tmp_path / "target", OneRank())
    assert says in str(caught.value)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(("source", "target"), [(".", "in"), ("in", "."), ("in", "in")])
def test_a_copy_within_itself_is_refused(tmp_path: Path, source: str, target: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(Agreed, match="one in the other"):
        copy(tmp_path / source, tmp_path / target, OneRank())


def test_room_is_looked_at_before_the_first_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    about = os.statvfs(tmp_path)
    with (source / "huge").open("wb") as stream:  # sparse: it takes no room itself
        stream.truncate(about.f_bavail * about.f_frsize + (1 << 30))
    began = time.monotonic()
    with pytest.raises(Agreed, match="bytes are free") as caught:
        copy(source, tmp_path / "target", OneRank())
    assert caught.value.status == 3
    assert time.monotonic() - began < 2
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_file_that_changes_meanwhile_is_named() -> None:
    # Files of sysfs say 4096 bytes and hold a few: they change under every reader.
    source = Path("/sys/kernel/mm/transparent_hugepage")
    if not source.is_dir():
        pytest.skip("no sysfs here")
    with pytest.raises(Outside, match="changed while it was staged") as caught:
        copy(source, Path("/tmp/never-made"), OneRank())
    assert str(source) in str(caught.value.where)
    assert not Path("/tmp/never-made").exists()


def test_staging_for_a_node_names_the_copy_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    source = tmp_path / "digits"
    make_tree(source)
    first = stage_for_node(source, OneRank())
    assert first.bytes_read == first.bytes
    assert stage_for_node(source, OneRank()).bytes_read == 0
    (source / "b/same").write_text("new")
    second = stage_for_node(source, OneRank())
    assert second.folder != first.folder
    assert Path(first.folder).name.startswith("digits-")
    assert stat.S_IMODE(Path(first.folder).parent.stat().st_mode) == 0o700


STAGE = """
import sys
from pathlib import Path
from hpcenv.base import record
from hpcenv.runtime.ranks import OneRank
from hpcenv.runtime.stage.copy import copy
print("ready", flush=True)
print(record.dump_json(copy(Path(sys.argv[1]), Path(sys.argv[2]), OneRank(), chunk=65536)))
"""


def test_a_kill_at_any_moment_leaves_nothing_half_made(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    make_tree(source, mib=24)
    for i in range(200):
        (source / f"a/small{i}").write_bytes(b"%d" % i * 1000)
    seed = random.randrange(10**9)
    print("seed", seed)
    chance = random.Random(seed)
    began = time.monotonic()
    copy(source, target, OneRank(), chunk=65_536)
    whole_s = time.monotonic() - began
    killed = 0
    for _ in range(40):
        if target.exists():
            assert_same(source, target)
            assert manifest.load(target / manifest.NAME) is not None
            remove(target)
        process = subprocess.Popen(
            [sys.executable, "-c", STAGE, source, target], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, whole_s))  # the moment is what varies
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert killed >= 5
    copied = copy(source, target, OneRank())
    assert_same(source, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert copied.bytes_read <= copied.bytes


def interrupted(source: Path, target: Path, after: int) -> None:
    """Stage until so many bytes were read, then kill."""
    code = f"""
import os, signal, sys
from pathlib import Path
from hpcenv.runtime.ranks import OneRank
from hpcenv.runtime.stage import transfer
from hpcenv.runtime.stage.copy import copy
class Killed(transfer.Reader):
    def _fill(self, *arguments):
        super()._fill(*arguments)
        if self.bytes_read >= {after}:
            os.kill(os.getpid(), signal.SIGKILL)
transfer.Reader = Killed
copy(Path(sys.argv[1]), Path(sys.argv[2]), OneRank(), chunk=65536)
"""
    done = subprocess.run([sys.executable, "-c", code, source, target])
    assert done.returncode == -signal.SIGKILL


def files_of(root: Path, count: int) -> None:
    root.mkdir()
    for i in range(count):
        (root / f"f{i}").write_bytes(bytes([i]) * 100_000)


def test_what_is_there_and_right_is_not_read_again(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    files_of(source, 10)
    interrupted(source, target, after=650_000)
    assert not target.exists()
    copied = copy(source, target, OneRank())
    assert copied.bytes_read == 400_000  # six of ten were whole; the seventh was not
    assert_same(source, target)


def test_what_is_there_and_wrong_is_read_again(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    files_of(source, 10)
    interrupted(source, target, after=650_000)
    tree = tmp_path / ".target.staging/tree"
    spoilt = tree / "f0"  # same size, same time, one bit
    about = spoilt.stat()
    spoilt.write_bytes(b"\1" + spoilt.read_bytes()[1:])
    os.utime(spoilt, ns=(about.st_atime_ns, about.st_mtime_ns))
    (source / "f1").write_bytes(b"changed")  # at the source since
    (source / "f2").unlink()
    (source / "f2").mkdir()
    (tree / "stray").mkdir()
    (tree / "stray/x").write_text("x")
    with (tmp_path / ".target.staging/journal").open("a") as journal:
        journal.write('{"path": "f9", "ki')  # cut short
    copied = copy(source, target, OneRank())
    assert copied.bytes_read == 100_000 * 5 + len(b"changed")
    assert_same(source, target)


def test_two_stagings_to_one_place_wait_for_each_other(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    make_tree(source, mib=16)
    both = [
        subprocess.Popen([sys.executable, "-c", STAGE, source, target], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    results = [json.loads(process.communicate()[0].removeprefix(b"ready\n")) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    read = sorted(result["bytes_read"] for result in results)
    assert read == [0, results[0]["bytes"]]
    assert_same(source, target)


names = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)


@given(
    st.builds(
        Entry,
        path=names.map(os.fsdecode),
        kind=st.just("file"),
        size=st.integers(0, 2**63),
        mtime_ns=st.integers(-(2**63), 2**63),
        mode=st.integers(0, 0o777),
        sha256=st.none() | st.just("0" * 64),
    )
)
def test_lines_of_a_manifest_keep_any_bytes(entry: Entry) -> None:
    text = manifest.line(entry)
    assert text.isascii() and "\n" not in text
    assert manifest.parse_line(text) == entry


@pytest.mark.parametrize("harm", ["cut", "line", "head", "nothing"])
def test_a_manifest_that_is_not_whole_is_none(tmp_path: Path, harm: str) -> None:
    file = tmp_path / "m"
    text = manifest.dump([Entry("a", "file", 1, 1, 0o644, None, "0" * 64), Entry("b", "folder")])
    lines = text.splitlines(keepends=True)
    if harm != "nothing":
        file.write_text({"cut": text[:-9], "line": "".join(lines[:-1]), "head": "x"}[harm])
    assert manifest.load(file) is None
    file.write_text(text)
    assert manifest.load(file) is not None


@given(st.dictionaries(st.integers(0, 500), st.integers(0, 10**9), max_size=60), st.integers(1, 12))
def test_files_are_shared_out_evenly(sizes: dict[int, int], ranks: int) -> None:
    shares = transfer.assign(sizes, ranks)
    assert sorted(index for share in shares for index in share) == sorted(sizes)
    cost = 64 << 10
    loads = [sum(sizes[index] + cost for index in share) for share in shares]
    # Graham: no more than 4/3 of the best, which is at least the mean and the largest file.
    best = max([sum(loads) / ranks, *(size + cost for size in sizes.values())], default=0)
    pairs = sorted((size + cost for size in sizes.values()), reverse=True)
    if len(pairs) > ranks:  # two of the largest ranks + 1 files share a rank, however shared out
        best = max(best, pairs[ranks - 1] + pairs[ranks])
    assert max(loads) <= best * 4 / 3


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.none() | st.just("ab" * 32), st.binary())
def test_pieces_survive_their_journey(
    index: int, offset: int, sha256: str | None, payload: bytes
) -> None:
    head = memoryview(bytearray(64))
    transfer.pack(index, offset, sha256, head)
    length = transfer._HEAD.size
    piece = transfer.unpack(memoryview(bytes(head[:length]) + payload))
    assert (piece.index, piece.offset, piece.sha256) == (index, offset, sha256)
    assert bytes(piece.payload) == payload


def test_what_arrives_spoilt_is_an_error(tmp_path: Path) -> None:
    from hpcenv.runtime.stage.place import Place

    place = Place(tmp_path / "t", [Entry("f", "file", 3, 1, 0o644)])
    with pytest.raises(Failure, match="what arrived has the SHA-256 ba7816bf"):  # FIPS 180-2: abc
        place.write(0, 0, memoryview(b"abc"), "0" * 64)
    place.close()


def test_the_result_is_json(tmp_path: Path) -> None:
    from hpcenv.base import record

    (tmp_path / "s").mkdir()
    copied = copy(tmp_path / "s", tmp_path / "t", OneRank())
    assert record.parse_json(Copied, record.dump_json(copied), "x") == copied
    assert (copied.bytes, copied.files, copied.folders) == (0, 0, 0)
