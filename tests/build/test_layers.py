"""Layers against GNU tar and the kernel: a tree, through layers, is the same tree again."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.build import layers

EPOCH = 1_700_000_000
NAMES = ["a", "b", "c.txt", "ü", "sp ace"]


def packed(tree: Path) -> io.BytesIO:
    argv = ["tar", "-c", "-C", tree, "--format=pax", "--sort=name", "--numeric-owner"]
    xattrs = ["--xattrs", "--xattrs-include=security.capability"]
    return io.BytesIO(subprocess.run([*argv, *xattrs, "."], check=True, capture_output=True).stdout)


def layer(tree: Path, folder: Path, parents: list[Path]) -> Path:
    """Write what `tree` is more, or less, than the layers below it."""
    before = layers.tree_of([layers.read_index(parent) for parent in parents])
    index = layers.difference(layers.scan(packed(tree)), before)
    folder.mkdir()
    layers.write_layer(folder, index, packed(tree), EPOCH)
    return folder


def unpacked(folders: list[Path], target: Path) -> Path:
    """What GNU tar makes of the layers' tree."""
    target.mkdir()
    out = io.BytesIO()
    layers.write_tree(folders, out, EPOCH)
    subprocess.run(
        ["tar", "-x", "-p", "-C", target, "--xattrs", "--xattrs-include=*"],
        input=out.getvalue(),
        check=True,
    )
    return target


def described(tree: Path) -> dict[str, tuple[object, ...]]:
    """Everything that counts of a tree, as the kernel tells it."""
    found: dict[str, tuple[object, ...]] = {}
    names: dict[int, list[str]] = {}
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            path = Path(folder, name)
            there, relative = path.lstat(), str(path.relative_to(tree))
            content: object = None
            if path.is_symlink():
                content = str(path.readlink())
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                names.setdefault(there.st_ino, []).append(relative)
            mode = None if path.is_symlink() else stat.S_IMODE(there.st_mode)
            found[relative] = (stat.S_IFMT(there.st_mode), mode, there.st_uid, content)
    for group in names.values():
        for name in group:
            found[name] = (*found[name], tuple(sorted(group)))
    return found


Change = tuple[str, str, str, bytes]
changes = st.lists(
    st.tuples(
        st.sampled_from(["write", "folder", "link", "hard", "remove", "mode"]),
        st.sampled_from(NAMES) | st.tuples(*[st.sampled_from(NAMES)] * 2).map("/".join),
        st.sampled_from(NAMES),
        st.binary(max_size=20),
    ),
    max_size=12,
)


def apply(tree: Path, change: Change) -> None:
    """Change a tree as a build might, where that is possible."""
    what, where, other, content = change
    path = tree / where
    if path.parent.is_symlink() or (path.parent != tree and not path.parent.is_dir()):
        return
    if what in ("write", "folder", "link", "hard", "remove"):
        if what == "hard" and (not (tree / other).is_file() or (tree / other) == path):
            return
        if what == "hard" and (tree / other).is_symlink():
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    match what:
        case "write":
            path.write_bytes(content)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(other)
        case "hard" if (tree / other).is_file():
            os.link(tree / other, path)
        case "mode" if path.exists() and not path.is_symlink():
            path.chmod(0o700 | len(content))


@given(st.lists(changes, min_size=1, max_size=4))
def test_a_tree_comes_out_as_it_went_in(steps: list[list[Change]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tree = work / "tree"
        tree.mkdir()
        made: list[Path] = []
        for number, step in enumerate(steps):
            for change in step:
                apply(tree, change)
            made.append(layer(tree, work / f"layer{number}", made))
        assert described(unpacked(made, work / "out")) == described(tree)


def test_what_did_not_change_is_not_in_a_layer(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "usr/lib/big").write_bytes(b"x" * 100_000)
    (tree / "usr/lib/other").write_text("1")
    first = layer(tree, tmp_path / "one", [])
    (tree / "usr/lib/other").write_text("2")
    os.utime(tree / "usr/lib/big")
    second = layer(tree, tmp_path / "two", [first])
    assert set(layers.read_index(second).entries) == {"usr/lib/other"}


def test_removed_paths_are_whiteouts_as_oci_images_have_them(tmp_path: Path) -> None:
    import tarfile

    import zstandard

    tree = tmp_path / "tree"
    (tree / "opt/x").mkdir(parents=True)
    (tree / "opt/x/y").write_text("1")
    first = layer(tree, tmp_path / "one", [])
    shutil.rmtree(tree / "opt/x")
    second = layer(tree, tmp_path / "two", [first])
    data = zstandard.ZstdDecompressor().stream_reader((second / layers.TAR).open("rb")).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert "opt/.wh.x" in archive.getnames()


def test_the_same_tree_at_another_time_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for number, when in enumerate((1_000_000_000, 1_600_000_000)):
        tree = tmp_path / f"tree{number}"
        (tree / "etc").mkdir(parents=True)
        (tree / "etc/x").write_text("1")
        (tree / "var/log").mkdir(parents=True)
        (tree / "var/log/dpkg.log").write_text(str(when))
        os.utime(tree / "etc/x", (when, when))
        made = layer(tree, tmp_path / f"layer{number}", [])
        digests.add(hashlib.sha256((made / layers.TAR).read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set a capability")
def test_capabilities_and_owners_stay(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    program = tree / "ping"
    shutil.copy("/bin/true", program)
    os.chown(program, 12, 34)
    # VFS_CAP_REVISION_2 with CAP_NET_RAW, effective: linux/capability.h.
    cap = bytes.fromhex("01000002" + "00200000" + "00" * 12)
    os.setxattr(program, "security.capability", cap)
    program.chmod(0o4755)
    os.setxattr(program, "security.capability", cap)
    made = layer(tree, tmp_path / "layer", [])
    out = unpacked([made], tmp_path / "out") / "ping"
    assert os.getxattr(out, "security.capability") == cap
    assert (out.stat().st_uid, out.stat().st_gid) == (12, 34)
    assert stat.S_IMODE(out.stat().st_mode) == 0o4755


def test_a_hard_link_to_what_is_dropped_keeps_its_content(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "tmp").mkdir(parents=True)
    (tree / "usr").mkdir()
    (tree / "tmp/a").write_text("kept")
    os.link(tree / "tmp/a", tree / "usr/a")
    index = layers.scan(packed(tree))
    assert index["usr/a"].kind == "file"
    assert index["usr/a"].sha256 == hashlib.sha256(b"kept").hexdigest()
    assert "tmp/a" not in index


class Interrupted(io.RawIOBase):
    """A pipe at which Ctrl-C arrives in a write, and whose reader has gone afterwards."""

    errors: list[BaseException]

    def __init__(self) -> None:
        self.errors = [KeyboardInterrupt(), *(BrokenPipeError() for _ in range(9))]

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise self.errors.pop(0)


def test_an_interruption_stays_one_where_the_pipe_breaks_with_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(4 << 20))
    made = layer(tree, tmp_path / "layer", [])
    with pytest.raises(KeyboardInterrupt):
        layers.write_tree([made], Interrupted(), EPOCH)  # type: ignore[arg-type]
