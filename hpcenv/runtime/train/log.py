"""The log of a run: one JSON object a line, written by rank 0 as things happen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "log.jsonl"


class Log:
    """Appends to the log; on other ranks than 0 it does nothing.

    Parameters
    ----------
    folder : Path or None
        Where the log lies; None where nothing is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self.stream = None
        if folder is not None:
            file = folder / NAME
            cut = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
            self.stream = file.open("a", encoding="utf-8")
            if cut:  # a line that a killed run left without its end
                self.stream.write("\n")

    def write(self, event: str, **values: Any) -> None:
        """Append one line: the time (seconds since 1970), the event, its values."""
        if self.stream:
            line = {"time": round(time.time(), 3), "event": event, **values}
            self.stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Close the file."""
        if self.stream:
            self.stream.close()


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log; those that a killed run left half written are passed over."""
    with (folder / NAME).open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(entry, dict) and "event" in entry:
                yield entry
