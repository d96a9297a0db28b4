"""A content-addressed folder of files: each is there once, under its SHA-256."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

from hpcenv.base.errors import Refused
from hpcenv.base.publish import publish, sweep

_CHUNK = 1 << 20


class Digest(str):
    """A SHA-256, as 64 lower-case hexadecimal digits.

    Raises
    ------
    ValueError
        If the text is anything else: a digest becomes a file's name.
    """

    PATTERN: ClassVar[str] = "^[0-9a-f]{64}$"
    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if re.fullmatch("[0-9a-f]{64}", text) is None:
            raise ValueError(f"{text!r} is not a SHA-256: 64 lower-case hexadecimal digits")
        return super().__new__(cls, text)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a digest; raises ValueError like the class itself."""
        return cls(text)


def digest_of(source: BinaryIO, into: BinaryIO | None = None) -> Digest:
    """Return the SHA-256 of what is left to read in `source`, and copy it where asked to."""
    state = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        state.update(chunk)
        if into is not None:
            into.write(chunk)
    return Digest(state.hexdigest())


def digest_of_file(path: Path) -> Digest:
    """Return the SHA-256 of a file."""
    with path.open("rb") as source:
        return digest_of(source)


class Blobs:
    """The store of blobs under one folder.

    Parameters
    ----------
    root : Path
        The folder; made at the first write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: Digest) -> Path:
        """Where the blob lies, or would lie."""
        return self.root / digest[:2] / digest

    def has(self, digest: Digest) -> bool:
        """Whether the blob is there (its content is not read again)."""
        return self.path(digest).is_file()

    def add(self, file: Path, expect: Digest | None = None) -> Digest:
        """Copy a file into the store.

        Raises
        ------
        Refused
            If the content is not the one that `expect` names; nothing is stored then.
        """
        found = digest_of_file(file)
        self._judge(file, found, expect)
        if not self.has(found):
            with publish(self.path(found)) as beside:
                with file.open("rb") as source, beside.open("xb") as copy:
                    # What was copied counts, not what was read before: the file may have changed.
                    self._judge(file, digest_of(source, copy), found)
                beside.chmod(0o644)
        return found

    @staticmethod
    def _judge(file: Path, found: Digest, expect: Digest | None) -> None:
        if expect is not None and found != expect:
            raise Refused(
                f"its SHA-256 is {found}, where {expect} was expected",
                where=str(file),
                remedy="the file was changed or cut short on its way; remove it and fetch again",
            )

    def verified(self, digest: Digest) -> Path:
        """Return the path of a blob whose content was just read and found right.

        Raises
        ------
        Refused
            If the blob is missing or its content has changed.
        """
        path = self.path(digest)
        if not path.is_file():
            raise Refused(
                f"{digest} is not in the store {self.root}",
                remedy="hpcenv fetch LOCK brings what is missing",
            )
        found = digest_of_file(path)
        if found != digest:
            raise Refused(
                f"the store's copy was changed: its SHA-256 is {found}, where {digest} is locked",
                where=str(path),
                remedy=f"rm {path} && hpcenv fetch LOCK",
            )
        return path

    def sweep(self) -> None:
        """Remove what interrupted writers left behind."""
        for folder in self._folders():
            sweep(folder)

    def _folders(self) -> Iterator[Path]:
        if self.root.is_dir():
            yield from (entry for entry in self.root.iterdir() if entry.is_dir())
