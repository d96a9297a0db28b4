"""A kill at any moment leaves the old or the new, and what it leaves beside is swept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcenv.base.publish import publish, remove, sweep

# Publishes, and is killed at the Nth line of Python that it runs after its set-up: every line
# of publish.py and of what it calls is a moment.
KILLED = """
import os, signal, sys
from pathlib import Path
from hpcenv.base.publish import publish

target, kind, moment = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
lines = 0

def trace(frame, event, _):
    global lines
    lines += event == "line"
    if lines == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace

sys.settrace(trace)
with publish(target) as beside:
    if kind == "file":
        beside.write_text("new\\n" * 5000)
    else:
        beside.mkdir()
        for name in ("a", "b", "c"):
            (beside / name).write_text(name)
sys.settrace(None)
"""


def published_until_killed(target: Path, kind: str, moment: int) -> int:
    words = [sys.executable, "-c", KILLED, str(target), kind, str(moment)]
    return subprocess.run(words, stdin=subprocess.DEVNULL).returncode


def moments(kind: str, folder: Path) -> list[int]:
    """About thirty moments spread over the whole life of one publication."""
    low, high = 1, 4096
    while low < high:  # the first moment that never comes
        middle = (low + high) // 2
        if published_until_killed(folder / "probe", kind, middle) == 0:
            high = middle
        else:
            low = middle + 1
        remove(folder / "probe")
    step = max(1, low // 30)
    return [*range(1, low, step), low - 1]


def test_killed_at_any_moment_a_file_is_old_or_new(tmp_path: Path) -> None:
    target = tmp_path / "file"
    seen = set()
    for moment in moments("file", tmp_path):
        target.write_text("old")
        assert published_until_killed(target, "file", moment) == -signal.SIGKILL
        seen.add(target.read_text())
        sweep(tmp_path)
        assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert seen == {"old", "new\n" * 5000}


def test_killed_at_any_moment_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    seen = set()
    for moment in moments("folder", tmp_path):
        assert published_until_killed(target, "folder", moment) == -signal.SIGKILL
        seen.add(tuple(sorted(entry.name for entry in target.iterdir())) if target.exists() else ())
        remove(target)
        sweep(tmp_path)
        assert not list(tmp_path.iterdir())
    assert seen == {(), ("a", "b", "c")}


@settings(max_examples=50)
@given(
    name=st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1),
    data=st.binary(),
)
def test_any_name(tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes) -> None:
    target = tmp_path_factory.mktemp("names") / name
    if name in (".", "..") or len(os.fsencode(name)) > 255:
        return
    with publish(target) as beside:
        beside.write_bytes(data)
    assert target.read_bytes() == data
    assert list(target.parent.iterdir()) == [target]


def test_the_longest_name(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 127)
    with publish(target) as beside:
        beside.write_text("x")
    assert target.read_text() == "x"


def test_what_raises_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(ZeroDivisionError), publish(tmp_path / "file") as beside:
        beside.write_text("half")
        raise ZeroDivisionError
    assert (tmp_path / "file").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), publish(tmp_path / "file"):
        pass
    assert not list(tmp_path.iterdir())


def test_of_many_publishers_of_a_folder_one_wins_whole(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def once(number: int) -> None:
        try:
            with publish(target) as beside:
                beside.mkdir()
                for name in ("a", "b"):
                    (beside / name).write_text(str(number))
                barrier.wait()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=once, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (target / "a").read_text() == (target / "b").read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_sweep_spares_the_living_and_other_hosts(tmp_path: Path) -> None:
    with publish(tmp_path / "file") as beside:
        beside.write_text("x")
        away = tmp_path / ".file.1-1@elsewhere_1.00000000.part"
        away.write_text("x")
        mine = tmp_path / ".note.part"
        mine.write_text("x")
        assert sweep(tmp_path) == []
        assert beside.exists() and away.exists() and mine.exists()
        beside.rename(beside.with_name(beside.name.replace(f"{os.getpid()}-", f"{os.getpid()}-1")))
        assert len(sweep(tmp_path)) == 1
        beside.write_text("again")


def test_sweep_spares_publishers_in_other_pid_namespaces(tmp_path: Path) -> None:
    # A container sees other process numbers: there, ours may seem dead.
    with publish(tmp_path / "file") as beside:
        beside.write_text("x")
        script = (
            "import sys; from pathlib import Path; from hpcenv.base.publish import sweep\n"
            "print(sweep(Path(sys.argv[1])))"
        )
        words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
        done = subprocess.run(
            [*words, sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
        )
        if done.returncode != 0 and "unshare" in done.stderr:
            pytest.skip(done.stderr.strip())
        assert (done.stdout, done.returncode) == ("[]\n", 0)


def test_remove_opens_what_is_shut(tmp_path: Path) -> None:
    # As an ordinary user; root needs no permission to remove.
    script = """
import os, sys
from pathlib import Path
from hpcenv.base.publish import remove
root = Path(sys.argv[1]) / "tree"
(root / "a" / "b").mkdir(parents=True)
(root / "a" / "b" / "file").write_text("x")
(root / "a" / "link").symlink_to("/etc")
for folder in (root / "a" / "b", root / "a", root):
    folder.chmod(0o500 if folder.name == "a" else 0)
remove(root)
assert not root.exists()
"""
    home = tmp_path / "home"
    home.mkdir()
    words = [sys.executable, "-c", script, str(home)]
    if os.geteuid() == 0:
        home.chmod(0o777)
        # No capability to pass over permissions, everything else as it was.
        words = [
            "setpriv",
            "--bounding-set=-dac_override,-dac_read_search",
            "--inh-caps=-all",
            *words,
        ]
    subprocess.run(words, check=True)
    assert Path("/etc/hostname").exists() and not list(home.iterdir())
