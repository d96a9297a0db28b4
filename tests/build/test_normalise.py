"""What of a tree is content."""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest

from hpcenv.build.normalise import Fate, fate, hash_based


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("etc/machine-id", False, Fate.EMPTY),
        ("etc/resolv.conf", False, Fate.EMPTY),
        ("etc/hostname", False, Fate.EMPTY),
        ("etc/apt/sources.list", False, Fate.EMPTY),
        ("var/lib/dbus/machine-id", False, Fate.DROP),
        ("var/log/dpkg.log", False, Fate.DROP),
        ("var/log/apt", True, Fate.KEEP),
        ("var/log/apt/history.log", False, Fate.DROP),
        ("var/cache/apt/pkgcache.bin", False, Fate.DROP),
        ("var/lib/apt/lists/partial", True, Fate.DROP),
        ("var/lib/apt/lists", True, Fate.KEEP),
        ("var/cache/ldconfig/aux-cache", False, Fate.DROP),
        ("etc/ld.so.cache", False, Fate.KEEP),
        ("etc/passwd-", False, Fate.DROP),
        ("etc/passwd", False, Fate.KEEP),
        ("tmp", True, Fate.KEEP),
        ("tmp/x", False, Fate.DROP),
        ("mnt/a.whl", False, Fate.DROP),
        ("dev/null", False, Fate.DROP),
        ("opt/tmp/x", False, Fate.KEEP),
        ("usr/share/proc/x", False, Fate.KEEP),
    ],
)
def test_fates(path: str, folder: bool, expected: Fate) -> None:
    assert fate(path, folder=folder) is expected


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_byte_code_stays_only_where_no_time_is_in_it(
    tmp_path: Path, mode: py_compile.PycInvalidationMode
) -> None:
    source = tmp_path / "a.py"
    source.write_text("x = 1\n")
    compiled = Path(py_compile.compile(str(source), invalidation_mode=mode) or "")
    head = compiled.read_bytes()[:16]
    unchecked = mode is py_compile.PycInvalidationMode.UNCHECKED_HASH
    assert hash_based(head) is unchecked
    expected = Fate.KEEP if unchecked else Fate.DROP
    assert fate("opt/a/__pycache__/a.cpython-311.pyc", folder=False, head=head) is expected


def test_a_cut_off_byte_code_file_is_dropped() -> None:
    assert fate("a.pyc", folder=False, head=b"\x01\x00") is Fate.DROP
