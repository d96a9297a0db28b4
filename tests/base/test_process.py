"""Whatever a program does, and whatever becomes of us: nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcenv.base.errors import Outside
from hpcenv.base.process import Outcome, Stream, processes_with, run

# Double-forks a daemon into a session of its own, streams closed: what shells and servers do.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for stream in (0, 1, 2):
            os.close(stream)
        if "deaf" in sys.argv:
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "bare" in sys.argv:
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        time.sleep(1000)
    os._exit(0)
os.wait()
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(true: object, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


def python(*words: str, **options: object) -> Outcome:
    return run([sys.executable, "-c", *words], **{"deadline": 30.0, **options})  # type: ignore[arg-type]


def test_status_and_streams() -> None:
    outcome = run(["sh", "-c", "echo out; echo err >&2; exit 7"], deadline=10)
    assert (outcome.status, outcome.out, outcome.err) == (7, "out\n", "err\n")
    assert not outcome.ok and not outcome.timed_out and outcome.left == ()


def test_a_signal_is_told_from_a_status() -> None:
    assert run(["sh", "-c", "kill -9 $$"], deadline=10).status == -9


def test_a_program_that_signals_its_whole_group_hurts_nobody_else() -> None:
    assert run(["sh", "-c", "kill -TERM 0; sleep 10"], deadline=10).status == -signal.SIGTERM


def test_signals_have_their_default_meaning() -> None:
    # Python ignores SIGPIPE; a program that inherits that writes into the void for ever.
    outcome = run(["sh", "-c", "yes | head -n 1; echo over"], deadline=10)
    assert outcome.out == "y\nover\n"


@settings(max_examples=30)
@given(text=st.text(st.characters(codec="utf-8"), max_size=300), copies=st.integers(0, 1000))
def test_what_goes_in_comes_out(text: str, copies: int) -> None:
    assert run(["cat"], deadline=10, stdin=text * copies).out == text * copies


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=5))
def test_no_shell_reads_the_arguments(words: list[str]) -> None:
    script = "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    assert python(script, *words).out == "\0".join(words)


def test_environment_and_folder(tmp_path: Path) -> None:
    outcome = run(
        ["sh", "-c", "pwd; echo $ONLY; echo $HOME"], deadline=10, env={"ONLY": "é"}, cwd=tmp_path
    )
    assert outcome.out.splitlines()[:2] == [str(tmp_path), "é"]
    assert outcome.out.splitlines()[2] == ""


def test_lines_come_while_it_runs() -> None:
    came: list[tuple[Stream, str, float]] = []
    began = time.monotonic()
    run(
        ["sh", "-c", "echo first; sleep 1; printf 'a\\r\\nlast'"],
        deadline=10,
        on_line=lambda stream, line: came.append((stream, line, time.monotonic() - began)),
    )
    assert [(stream, line) for stream, line, _ in came] == [
        ("out", w) for w in ("first", "a", "last")
    ]
    assert came[0][2] < came[1][2] - 0.5


def test_the_end_of_much_output_is_kept() -> None:
    outcome = run(["sh", "-c", "yes 123456789 | head -c 50000000; echo end"], deadline=60)
    assert outcome.out.endswith("end\n")
    assert 31 << 20 < len(outcome.out) <= 32 << 20


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    longest = 0

    def measure(_: Stream, line: str) -> None:
        nonlocal longest
        longest = max(longest, len(line))

    run(["head", "-c", "10000000", "/dev/zero"], deadline=60, on_line=measure)
    assert 0 < longest < 2 << 20


def test_a_slow_listener_loses_nothing() -> None:
    came = []

    def slow(_: Stream, line: str) -> None:
        came.append(line)
        time.sleep(0.005)

    run(["seq", "800"], deadline=60, on_line=slow)
    assert came == [str(number) for number in range(1, 801)]


def test_what_a_listener_raises_ends_the_program() -> None:
    def refuse(_: Stream, line: str) -> None:
        raise ValueError(line)

    began = time.monotonic()
    with pytest.raises(ValueError, match="go"):
        run(["sh", "-c", "echo go; sleep 1000"], deadline=100, on_line=refuse)
    assert time.monotonic() - began < 20


def test_deadline() -> None:
    began = time.monotonic()
    outcome = run(["sleep", "1000"], deadline=0.5)
    assert outcome.timed_out and outcome.status == -signal.SIGTERM and not outcome.ok
    assert 0.5 <= time.monotonic() - began < 10


def test_deaf_to_term_is_killed() -> None:
    assert run(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], deadline=0.5).status == -9


def test_asleep_is_woken_to_end() -> None:
    assert run(["sh", "-c", "kill -STOP $$"], deadline=0.5).status == -signal.SIGTERM


@pytest.mark.parametrize("how", ["plain", "deaf", "bare"])
def test_a_daemon_is_ended(how: str) -> None:
    # "bare" has an empty environment: not even a token tells whose it is.
    outcome = python(DAEMON, how)
    assert outcome.ok and len(outcome.left) == 1
    assert not alive(outcome.left[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become somebody else")
def test_another_user_s_processes_are_ended_where_we_may() -> None:
    outcome = run(["sh", "-c", "setsid setpriv --reuid 65534 sleep 1000 & exit 0"], deadline=20)
    assert outcome.ok and all(not alive(pid) for pid in outcome.left)


def test_missing_program_and_folder(tmp_path: Path) -> None:
    with pytest.raises(Outside, match="cannot start no-such-program: No such file"):
        run(["no-such-program"], deadline=10)
    plain = tmp_path / "plain"
    plain.write_text("")
    with pytest.raises(Outside, match="Permission denied"):
        run([plain], deadline=10)


def test_must_says_what_was_wrong() -> None:
    outcome = run(["sh", "-c", "echo first; echo the reason >&2; exit 3"], deadline=10)
    with pytest.raises(Outside, match=r"(?s)to see: sh ended with status 3 .*the reason"):
        outcome.must("to see")


def test_many_at_once() -> None:
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(python(DAEMON, "bare"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(outcome.left) for outcome in outcomes] == [1] * 8
    assert len({outcome.left[0] for outcome in outcomes}) == 8
    assert not any(alive(outcome.left[0]) for outcome in outcomes)


CALLER = """
import sys, threading
from hpcenv.base.process import run
def call():
    run([sys.executable, "-c", sys.argv[1], "deaf"], deadline=1000,
        on_line=lambda _, line: print(line, flush=True))
if sys.argv[2] == "thread":
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
else:
    call()
"""
FAMILY = DAEMON.replace("os.wait()", "") + textwrap.dedent("""
    time.sleep(0.2)
    print("up", flush=True)
    time.sleep(1000)
""")


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_caller(number: signal.Signals, where: str) -> None:
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, FAMILY, where],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MARK": mark},
    )
    assert caller.stdout is not None and caller.stdout.readline() == b"up\n"
    assert len(processes_with(mark)) >= 3
    caller.send_signal(number)
    if (number, where) == (signal.SIGINT, "thread"):
        caller.kill()  # Python lets a thread end first; a person presses again, then harder
    caller.wait(timeout=30)
    wait_until(lambda: not processes_with(mark))


def test_killing_the_guard_ends_what_it_guarded_and_is_told() -> None:
    seen: list[int] = []

    def kill_guard(_: Stream, line: str) -> None:
        seen.append(int(line))
        os.kill(int(Path(f"/proc/{line}/stat").read_text().rpartition(")")[2].split()[1]), 9)

    with pytest.raises(Outside, match="watched over sh was killed"):
        run(["sh", "-c", "echo $$; exec sleep 1000"], deadline=100, on_line=kill_guard)
    wait_until(lambda: not alive(seen[0]))
