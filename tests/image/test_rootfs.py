"""Root file systems against the kernel's own resolution and against mksquashfs."""

from __future__ import annotations

import ctypes
import os
import random
import stat
import struct
import subprocess
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcenv.base.errors import BadInput
from hpcenv.image import sif
from hpcenv.image.rootfs import open_rootfs

_OPENAT2, _O_PATH, _IN_ROOT = 437, 0o10000000, 0x10
_NAMES = ("a", "b", "c", "d")


def kernel_resolves(root: Path, path: str) -> str | None:
    """Ask the kernel, by openat2(2) with RESOLVE_IN_ROOT: it resolves as a chroot would."""
    libc = ctypes.CDLL(None, use_errno=True)
    how = ctypes.create_string_buffer(struct.pack("QQQ", _O_PATH | os.O_CLOEXEC, 0, _IN_ROOT))
    folder = os.open(root, os.O_RDONLY)
    try:
        handle = libc.syscall(_OPENAT2, folder, path.encode(), how, 24)
        if handle < 0:
            return None
        try:
            real = str(Path(f"/proc/self/fd/{handle}").readlink())
        finally:
            os.close(handle)
    finally:
        os.close(folder)
    return "/" + os.path.relpath(real, root) if real != str(root) else "/"


_PATHS = st.lists(st.sampled_from([*_NAMES, "..", ".", ""]), min_size=1, max_size=5).map("/".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    entries=st.lists(
        st.tuples(
            st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3).map("/".join),
            st.one_of(
                st.none(),
                st.just(b"x"),
                _PATHS.filter(bool),  # a link to nothing cannot be made
                _PATHS.map(lambda path: "/" + path),
            ),
        ),
        max_size=10,
    ),
    asked=st.lists(_PATHS, min_size=1, max_size=8),
)
def test_links_lead_where_the_kernel_says(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[tuple[str, bytes | str | None]],
    asked: list[str],
) -> None:
    root = tmp_path_factory.mktemp("root")
    for path, what in entries:
        place = root / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if what is None:
                place.mkdir(exist_ok=True)
            elif isinstance(what, bytes):
                place.write_bytes(what)
            else:
                place.symlink_to(what)
        except OSError:
            continue  # the place is taken by something else, or lies behind a link that fails
    found = open_rootfs(root)
    for path in asked:
        assert found.resolve("/" + path) == kernel_resolves(root, "/" + path), path


def test_nothing_leads_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    root = tmp_path / "root"
    root.mkdir()
    (root / "up").symlink_to("../secret")
    (root / "absolute").symlink_to(str(tmp_path / "secret"))
    (root / "loop").symlink_to("loop")
    (root / "etc").mkdir()
    found = open_rootfs(root)
    assert found.read("/up") is None
    assert found.read("/absolute") is None
    assert found.read("/../secret") is None
    assert found.read("/loop") is None
    assert list(found.find("/../*", "/etc/../../sec*")) == ["/absolute", "/etc", "/loop", "/up"]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    root = open_rootfs(tmp_path)
    for path in ("/pipe", "/folder", "/missing"):
        with pytest.raises(FileNotFoundError):
            root.open(path)


# -- SIF -----------------------------------------------------------------------------------------


def make_tree(folder: Path) -> None:
    """Write files of every shape that SquashFS stores in a way of its own."""
    rng = random.Random(1)
    block = 131072
    contents = {
        "empty": b"",
        "small": b"hello\n",
        "one-block": rng.randbytes(block),
        "blocks-and-tail": rng.randbytes(3 * block + 777),
        "compressible": b"abc" * 200_000,
        "zeros": bytes(2 * block + 5),
    }
    (folder / "dir/deep").mkdir(parents=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        (folder / "dir/deep" / name).write_bytes(data[::-1])
    with (folder / "sparse").open("wb") as sparse:
        sparse.seek(5 * block)
        sparse.write(b"end")
    (folder / "link").symlink_to("dir/deep/small")
    (folder / "absolute").symlink_to("/dir")
    (folder / "small").chmod(0o750)
    for i in range(300):
        (folder / "dir" / f"file{i:03}").write_bytes(b"%d" % i * i)


def make_sif(folder: Path, out: Path, compression: str) -> Path:
    """Pack a folder with mksquashfs, and put the header around it by hand."""
    squash = out.with_suffix(".squash")
    subprocess.run(
        ["mksquashfs", folder, squash, "-comp", compression, "-noappend", "-quiet", "-no-progress"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    data = squash.read_bytes()
    arch = sif.ARCHES["x86_64"]
    start = 65536
    header = sif.Header(
        arch, uuid.UUID(int=1), 0, 0, 0, 1, 4096, sif.DESCRIPTOR_SIZE, start, len(data)
    )
    extra = sif.Partition(sif.FsType.SQUASHFS, sif.PartType.PRIMARY, arch).pack()
    part = sif.Descriptor(
        sif.DataType.PARTITION, 1, 1, 0, start, len(data), len(data), 0, 0, 0, 0, "rootfs", extra
    )
    whole = bytearray(start)
    whole[: sif.HEADER_SIZE] = header.pack()
    whole[4096 : 4096 + sif.DESCRIPTOR_SIZE] = part.pack()
    out.write_bytes(bytes(whole) + data)
    squash.unlink()
    return out


@pytest.mark.parametrize("compression", ["zstd", "gzip", "xz", "lz4"])
def test_a_sif_reads_as_the_folder_that_it_was_made_of(tmp_path: Path, compression: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    make_tree(tree)
    root = open_rootfs(make_sif(tree, tmp_path / "x.sif", compression))
    seen = 0
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            path = Path(folder, name)
            inside = "/" + str(path.relative_to(tree))
            if path.is_symlink():
                assert root.readlink(inside) == str(path.readlink())
                continue
            found = root.stat(inside)
            assert found is not None
            assert found.mode == stat.S_IMODE(path.stat().st_mode)
            if path.is_file():
                data = path.read_bytes()
                assert (found.kind, found.size) == ("file", len(data))
                with root.open(inside) as file:
                    assert file.read() == data
                    for start in (0, len(data) // 2, max(0, len(data) - 3), len(data) + 5):
                        file.seek(start)
                        assert file.read(1000) == data[start : start + 1000]
            seen += 1
    assert seen > 300
    assert root.read("/absolute/deep/../deep/small") == (tree / "dir/deep/small").read_bytes()
    assert list(root.find("/dir/file00*")) == [f"/dir/file00{i}" for i in range(10)]


@pytest.fixture(scope="module")
def small_sif(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sif")
    tree = folder / "tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc/os-release").write_text("ID=test\n")
    (tree / "big").write_bytes(random.Random(2).randbytes(300_000))
    return make_sif(tree, folder / "small.sif", "zstd")


@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_sif_is_refused_or_read_never_a_crash(
    small_sif: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(small_sif.read_bytes())
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(whole) - 1)))
    used = [*range(sif.HEADER_SIZE), *range(4096, 4096 + 128), *range(65536, len(whole))]
    for at in data.draw(st.lists(st.sampled_from(used), min_size=0 if cut else 1, max_size=6)):
        whole[at] ^= data.draw(st.integers(1, 255))
    damaged = tmp_path_factory.mktemp("damaged") / "x.sif"
    damaged.write_bytes(whole if cut is None else whole[:cut])
    try:
        root = open_rootfs(damaged)
        for path in root.find("/*", "/etc/*"):
            root.read(path)
    except (BadInput, OSError):
        pass


def test_what_is_no_image_is_said_to_be_none(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("x" * 1000)
    with pytest.raises(BadInput, match="not a readable SIF"):
        open_rootfs(text)
    with pytest.raises(BadInput, match="no such image"):
        open_rootfs(tmp_path / "missing.sif")


def test_a_sif_without_a_root_file_system_says_so(tmp_path: Path, small_sif: Path) -> None:
    whole = bytearray(small_sif.read_bytes())
    at = 4096 + struct.calcsize("<i?III7q128s")
    whole[at : at + 4] = struct.pack("<i", sif.FsType.ENCRYPTED_SQUASHFS)
    other = tmp_path / "encrypted.sif"
    other.write_bytes(whole)
    with pytest.raises(BadInput, match="encrypted"):
        open_rootfs(other)
