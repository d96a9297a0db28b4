"""Jobs at once: results in order, the first failure at once, nobody waited for in vain."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.together import as_they_end, together


@given(st.lists(st.integers(), max_size=30), st.integers(1, 8))
def test_every_job_ends_once_whatever_the_number_at_once(values: list[int], at_once: int) -> None:
    jobs = [lambda value=value: value * 2 for value in values]
    ended = dict(as_they_end(jobs, at_once))
    assert ended == {number: value * 2 for number, value in enumerate(values)}
    assert together(*jobs) == [value * 2 for value in values]


def test_no_more_run_at_once_than_asked_for() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def job() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    list(as_they_end([job] * 20, 3))
    assert most == 3


def test_a_failure_is_raised_while_another_job_hangs() -> None:
    release = threading.Event()
    try:
        began = time.monotonic()
        with pytest.raises(ZeroDivisionError):
            together(lambda: release.wait(30), lambda: 1 // 0)
        assert time.monotonic() - began < 10
    finally:
        release.set()


def test_nothing_new_starts_once_nobody_listens() -> None:
    started: list[int] = []
    release = threading.Event()

    def job(number: int) -> None:
        started.append(number)
        if number:
            release.wait(30)

    ended = as_they_end([lambda n=n: job(n) for n in range(10)], 2)
    assert next(ended) == (0, None)
    ended.close()
    release.set()
    assert len(started) <= 3
