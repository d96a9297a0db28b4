"""Several jobs at once, without ever waiting for one that nobody wants any more.

The standard library's executors join their threads: after Ctrl-C a person would wait for a server
that has gone silent. Here who stops listening is free at once; the threads are daemons, and what
runs in them must stand being cut off (downloads append to partial files, programs run under
`hpcenv.base.process`, which ends them with us).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 8


def as_they_end(
    jobs: Sequence[Callable[[], T]], at_once: int = AT_ONCE
) -> Iterator[tuple[int, T | Exception]]:
    """Run jobs and give each one's number and result, or exception, as it ends.

    They start in the order given. When the iteration is left early, no further one starts.
    """
    todo = deque(enumerate(jobs))
    ended: SimpleQueue[tuple[int, T | Exception]] = SimpleQueue()

    def work() -> None:
        while True:
            try:
                number, job = todo.popleft()
            except IndexError:
                return
            try:
                ended.put((number, job()))
            except Exception as error:
                ended.put((number, error))

    try:
        for _ in range(min(at_once, len(jobs))):
            threading.Thread(target=work, daemon=True).start()
        for _ in jobs:
            yield ended.get()
    finally:
        todo.clear()


def together(*jobs: Callable[[], T]) -> list[T]:
    """Run jobs at once and return their results in order; the first exception is raised at once."""
    results: dict[int, T] = {}
    for number, result in as_they_end(jobs):
        if isinstance(result, Exception):
            raise result
        results[number] = result
    return [results[number] for number in range(len(jobs))]
