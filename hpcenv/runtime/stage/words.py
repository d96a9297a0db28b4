"""Words for people about a staging."""

from __future__ import annotations

from hpcenv.runtime.stage.copy import Copied


def words(copied: Copied) -> str:
    """Say what a staging did, in one line."""
    return (
        f"staged {copied.files:,} file(s), {copied.bytes:,} bytes to {copied.nodes} node(s): "
        f"{copied.bytes_read:,} bytes read from the source by {copied.ranks} rank(s), "
        f"{copied.seconds:.2f} s"
    )
