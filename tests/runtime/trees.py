"""Trees of files to stage, and whether a copy is the same."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

from hpcenv.runtime.stage import manifest


def make_tree(root: Path, mib: int = 1) -> int:
    """Make a tree with what trees hold; return the bytes of its files."""
    for folder in ("a", "b/c", "empty", "closed"):
        (root / folder).mkdir(parents=True)
    chance = random.Random(1)
    sizes = {"a/same": 70_001, "b/same": 3, "b/c/same": 0, "big": (mib << 20) + 17, "closed/x": 9}
    for name, size in sizes.items():
        (root / name).write_bytes(chance.randbytes(size))
    odd = os.fsencode(root) + b"/not utf-8 \xff\n\x01"
    with open(odd, "wb") as stream:  # noqa: PTH123
        stream.write(b"odd")
    (root / "link").symlink_to("a/same")
    (root / "b/up").symlink_to("../a")
    (root / "dangling").symlink_to("nowhere")
    (root / "a/same").chmod(0o440)
    (root / "closed").chmod(0o555)
    os.utime(root / "big", ns=(1, 1_234_567_890_123_456_789))
    return sum(sizes.values()) + 3


def assert_same(source: Path, target: Path) -> None:
    """By tools that are not ours: diff for content, find for kinds, modes, sizes, times, links."""
    compared = subprocess.run(
        ["diff", "-r", "--no-dereference", "-x", manifest.NAME, source, target],
        capture_output=True,
    )
    assert compared.returncode == 0, compared.stdout + compared.stderr
    seen = [
        subprocess.run(
            ["find", root, "!", "-name", manifest.NAME, "(", "-type", "f",
             "-printf", r"%y %m %s %T@ %P\0", "-o", "-type", "d", "-printf", r"%y %m %P\0",
             "-o", "-printf", r"%y %l %P\0", ")"],
            capture_output=True,
            check=True,
        ).stdout.split(b"\0")
        for root in (source, target)
    ]  # fmt: skip
    assert sorted(seen[0]) == sorted(seen[1])
