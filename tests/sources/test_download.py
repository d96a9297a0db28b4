"""Downloads over real sockets: whole, broken off, wrong, gone, unreachable."""

from __future__ import annotations

import hashlib
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from serving import Site, serving

from hpcenv.base.blobs import Blobs, Digest
from hpcenv.base.errors import Outside, Refused
from hpcenv.sources.download import Tally, Wanted, download
from hpcenv.sources.mirrors import Mirrors

HERE = Mirrors()


@pytest.fixture
def web() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def wanted(name: str, data: bytes, *urls: str) -> Wanted:
    return Wanted(name, len(data), Digest(hashlib.sha256(data).hexdigest()), urls)


def names_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_many_files_arrive_whole_and_are_counted(web: Site, blobs: Blobs) -> None:
    files = {f"/{i}": content(1000 * i, i) for i in range(1, 30)}
    web.files = files
    tallies: list[Tally] = []
    items = [wanted(path, data, web.url + path) for path, data in files.items()]
    download(items, blobs, HERE, tallies.append)
    for item, data in zip(items, files.values(), strict=True):
        assert blobs.path(item.sha256).read_bytes() == data
    total = sum(map(len, files.values()))
    assert tallies[-1] == Tally(29, 29, total, total)
    assert all(a.bytes_done <= b.bytes_done for a, b in pairwise(tallies))
    assert names_in(blobs.root) == sorted(item.sha256 for item in items)


def test_what_is_there_is_not_asked_for(web: Site, blobs: Blobs) -> None:
    web.files["/a"] = content(10)
    item = wanted("a", web.files["/a"], web.url + "/a")
    download([item, item], blobs, HERE)
    download([item], blobs, HERE)
    assert web.asked == ["GET /a"]


def test_a_file_that_breaks_off_goes_on_where_it_stopped(web: Site, blobs: Blobs) -> None:
    data = content(3_000_000)
    web.files["/big"] = data
    web.break_after = lambda path, request: 1_000_000 if request <= 2 else None
    item = wanted("big", data, web.url + "/big")
    download([item], blobs, HERE)
    assert blobs.path(item.sha256).read_bytes() == data
    first, *later = web.asked
    assert first == "GET /big"
    starts = [int(line.removeprefix("GET /big bytes=").rstrip("-")) for line in later]
    # A chunk that was cut may be asked for again; nothing before it is.
    for start, sent in zip(starts, (1_000_000, starts[0] + 1_000_000), strict=True):
        assert sent - (1 << 18) <= start <= sent


def test_a_server_without_ranges_starts_again(web: Site, blobs: Blobs) -> None:
    data = content(1_500_000)
    web.files["/big"], web.ranges = data, False
    web.break_after = lambda path, request: 600_000 if request == 1 else None
    item = wanted("big", data, web.url + "/big")
    download([item], blobs, HERE)
    assert blobs.path(item.sha256).read_bytes() == data


_FETCH = """
import sys
from pathlib import Path
from hpcenv.base.blobs import Blobs
from hpcenv.sources.download import Wanted, download
from hpcenv.sources.mirrors import Mirrors
root, size, digest, url = sys.argv[1:]
download([Wanted("big", int(size), digest, (url,))], Blobs(Path(root)), Mirrors())
"""


def test_after_a_kill_the_next_one_goes_on(web: Site, blobs: Blobs) -> None:
    data = content(4_000_000)
    web.files["/big"] = data
    item = wanted("big", data, web.url + "/big")
    half_sent, go_on = threading.Event(), threading.Event()

    def hold(path: str, request: int) -> int | None:
        return 2_000_000 if request == 1 else None

    def stall(path: str, request: int) -> None:
        if request == 1:
            half_sent.set()
            go_on.wait(60)

    web.break_after, web.after_body = hold, stall
    words = [sys.executable, "-c", _FETCH, str(blobs.root), str(item.size), item.sha256]
    process = subprocess.Popen([*words, item.urls[0]])
    partial = blobs.root / ".incoming" / item.sha256
    assert half_sent.wait(60)
    while process.poll() is None and _size(partial) < 1_000_000:
        pass
    process.kill()
    process.wait()
    go_on.set()
    kept = _size(partial)
    assert 1_000_000 <= kept <= 2_000_000 and not blobs.has(item.sha256)
    web.asked.clear()
    download([item], blobs, HERE)
    assert blobs.path(item.sha256).read_bytes() == data
    assert web.asked == [f"GET /big bytes={kept}-"]
    assert names_in(blobs.root) == [item.sha256]


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def test_another_content_is_refused_and_nothing_is_kept(web: Site, blobs: Blobs) -> None:
    right, wrong = content(5000, 1), content(5000, 2)
    web.files["/f"] = wrong
    item = wanted("pkg 1.0", right, web.url + "/f")
    with pytest.raises(Refused) as raised:
        download([item], blobs, HERE)
    assert raised.value.where == "pkg 1.0"
    assert hashlib.sha256(wrong).hexdigest() in raised.value.says and item.sha256 in str(
        raised.value
    )
    assert raised.value.status == 1
    assert names_in(blobs.root) == []


@pytest.mark.parametrize("size", [4000, 6000])
def test_a_file_of_another_length_is_refused(web: Site, blobs: Blobs, size: int) -> None:
    web.files["/f"] = content(size, 2)
    with pytest.raises(Refused):
        download([wanted("f", content(5000, 1), web.url + "/f")], blobs, HERE)
    assert names_in(blobs.root) == []


def test_the_second_place_is_asked_when_the_first_has_it_no_more(web: Site, blobs: Blobs) -> None:
    web.files["/new/f"] = content(100)
    item = wanted("f", content(100), web.url + "/old/f", web.url + "/new/f")
    download([item], blobs, HERE)
    assert blobs.has(item.sha256)


def test_what_is_gone_is_named_with_the_host_and_what_to_do(web: Site, blobs: Blobs) -> None:
    items = [wanted(f"gone-{i} 1.{i}", content(100, i), f"{web.url}/{i}") for i in range(3)]
    web.files["/ok"] = content(50, 9)
    fine = wanted("ok", content(50, 9), web.url + "/ok")
    with pytest.raises(Outside) as raised:
        download([*items, fine], blobs, HERE)
    text = str(raised.value)
    for item in items:
        assert item.name in text
    assert "127.0.0.1" in text and "404" in text and "snapshot" in text and "--upgrade" in text
    assert "3 of 4" in text
    assert blobs.has(fine.sha256)  # what could be had is kept


def test_no_place_at_all_is_said(blobs: Blobs) -> None:
    with pytest.raises(Outside, match="no configured mirror or index lists it"):
        download([wanted("f.whl", b"x")], blobs, HERE)


def test_a_busy_server_is_asked_again(web: Site, blobs: Blobs) -> None:
    web.files["/f"] = content(100)
    web.fail = lambda path, request: 503 if request <= 2 else None
    item = wanted("f", content(100), web.url + "/f")
    download([item], blobs, HERE)
    assert blobs.has(item.sha256) and len(web.asked) == 3


def test_a_server_that_stays_broken_is_named_with_its_answer(web: Site, blobs: Blobs) -> None:
    web.fail = lambda path, request: 502
    with pytest.raises(Outside, match=r"127\.0\.0\.1 \(it answered 502"):
        download([wanted("f", b"x", web.url + "/f")], blobs, HERE)


def test_a_host_that_refuses_ends_it_in_seconds(blobs: Blobs) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/f"
        items = [wanted(f"f{i}", content(10, i), url) for i in range(50)]
        began = time.monotonic()
        with pytest.raises(Outside, match=r"cannot reach 127\.0\.0\.1") as raised:
            download(items, blobs, HERE)
    assert time.monotonic() - began < 5
    assert raised.value.status == 3


def test_a_name_that_does_not_resolve_ends_it_in_seconds(blobs: Blobs) -> None:
    began = time.monotonic()
    with pytest.raises(Outside, match=r"nowhere\.invalid"):
        download([wanted("f", b"x", "http://nowhere.invalid/f")], blobs, HERE)
    assert time.monotonic() - began < 20


def test_a_password_in_a_url_is_not_shown(blobs: Blobs) -> None:
    with pytest.raises(Outside) as raised:
        download([wanted("f", b"x", "http://me:s3cret@nowhere.invalid/f")], blobs, HERE)
    assert "s3cret" not in str(raised.value)


def test_a_file_of_this_host_is_copied(tmp_path: Path, blobs: Blobs) -> None:
    file = tmp_path / "a b%.whl"
    file.write_bytes(content(700_000))
    item = wanted(file.name, content(700_000), file.as_uri())
    download([item], blobs, HERE)
    assert blobs.path(item.sha256).read_bytes() == content(700_000)
