"""How far downloads are: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcenv.cli import output

if TYPE_CHECKING:
    from hpcenv.sources.download import Progress, Tally

_EVERY_S = 5.0


@contextmanager
def downloads(what: str) -> Iterator[Progress]:
    """Give a callback for `hpcenv.sources.download`, which shows how far it is."""
    if output.styled():
        with _bar(what) as progress:
            yield progress
    else:
        yield _lines(what)


def _lines(what: str) -> Progress:
    began = last = time.monotonic()

    def progress(tally: Tally) -> None:
        nonlocal last
        now = time.monotonic()
        done = tally.files_done == tally.files
        if done or now - last >= _EVERY_S:
            last = now
            output.say(
                f"{what}  {tally.files_done}/{tally.files} files, "
                f"{tally.bytes_done / 1e6:,.0f}/{tally.bytes / 1e6:,.0f} MB, {now - began:.0f} s"
            )

    return progress


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[files]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(what, total=None, files="")

        def progress(tally: Tally) -> None:
            files = f"{tally.files_done}/{tally.files} files"
            bar.update(task, total=tally.bytes, completed=tally.bytes_done, files=files)

        yield progress
