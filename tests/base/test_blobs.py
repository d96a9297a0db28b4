"""Files under their digests: told apart, never half there, tampering noticed."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.blobs import Blobs, Digest, digest_of, digest_of_file
from hpcenv.base.errors import Refused

NOBODY_S = Digest("0" * 64)


@given(st.binary(max_size=3000))
def test_digests_are_sha256(data: bytes) -> None:
    copy = io.BytesIO()
    assert digest_of(io.BytesIO(data), copy) == hashlib.sha256(data).hexdigest()
    assert copy.getvalue() == data


def test_digest_of_a_large_file_as_sha256sum_has_it(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(range(256)) * 20_000)
    said = subprocess.run(["sha256sum", str(file)], capture_output=True, text=True, check=True)
    assert digest_of_file(file) == said.stdout.split()[0]


@given(st.one_of(st.text(), st.from_regex("[0-9a-fA-F]{63,65}\\n?", fullmatch=True)))
def test_nothing_else_is_a_digest(text: str) -> None:
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        assert Digest(text) == text
    else:
        with pytest.raises(ValueError, match="not a SHA-256"):
            Digest(text)


def test_no_digest_leads_out_of_the_store() -> None:
    with pytest.raises(ValueError):
        Digest("../" * 21 + "x")


def test_add_and_have(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "store")
    file = tmp_path / "file"
    file.write_bytes(b"content")
    digest = Digest(hashlib.sha256(b"content").hexdigest())
    assert not blobs.has(digest)
    assert blobs.add(file, expect=digest) == digest
    assert blobs.has(digest) and blobs.verified(digest).read_bytes() == b"content"


def test_another_content_than_promised_is_refused(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "store")
    file = tmp_path / "file"
    file.write_bytes(b"content")
    with pytest.raises(Refused, match="where 0000"):
        blobs.add(file, expect=NOBODY_S)
    assert not (tmp_path / "store").exists()


@given(position=st.integers(0, 6), flip=st.integers(1, 255))
def test_one_changed_byte_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int
) -> None:
    folder = tmp_path_factory.mktemp("tampered")
    blobs = Blobs(folder / "store")
    (folder / "file").write_bytes(b"content")
    digest = blobs.add(folder / "file")
    changed = bytearray(b"content")
    changed[position] ^= flip
    blobs.path(digest).write_bytes(changed)
    with pytest.raises(Refused, match="was changed") as refused:
        blobs.verified(digest)
    assert refused.value.where == str(blobs.path(digest)) and refused.value.remedy


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"{NOBODY_S} is not in the store"):
        Blobs(tmp_path).verified(NOBODY_S)


def test_a_file_that_changes_while_it_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"before")
    blobs = Blobs(tmp_path / "store")

    def changing(digest: Digest) -> bool:
        file.write_bytes(b"after!")
        return False

    monkeypatch.setattr(blobs, "has", changing)
    with pytest.raises(Refused, match="was expected"):
        blobs.add(file)
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_many_add_the_same_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5_000_000)
    blobs = Blobs(tmp_path / "store")
    found: list[Digest] = []
    threads = [threading.Thread(target=lambda: found.append(blobs.add(file))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    blobs.verified(found[0])
    assert [path for path in blobs.root.rglob("*") if path.is_file()] == [blobs.path(found[0])]


def test_sweep_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from hpcenv.base.blobs import Blobs, Digest\n"
        "from hpcenv.base.publish import publish\n"
        "with publish(Blobs(Path(sys.argv[1])).path(Digest('0' * 64))) as beside:\n"
        "    beside.write_text('half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
    Blobs(tmp_path).sweep()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
