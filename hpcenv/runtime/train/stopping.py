"""Being asked to stop: by SIGTERM, SIGINT or SIGUSR1, as schedulers and people do."""

from __future__ import annotations

import signal
from types import FrameType

STATUS = 75
"""Exit status of a run that saved and can go on (``EX_TEMPFAIL`` of sysexits.h)."""


class StopWish:
    """Set by the first signal; a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.made = False

    def listen(self) -> None:
        """Take the signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.made and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.made = True
