"""The store: blobs, stages and images, under one folder of the user's.

A packed image lies under the key of the stage that it was packed from, which tells its content,
and ``NAME/TAG`` is a link to one: publishing an image is one rename, and an image that a running
job has open stays what it is.
"""

from __future__ import annotations

import difflib
import fcntl
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcenv.base.blobs import Blobs, Digest
from hpcenv.base.errors import BadInput, Outside
from hpcenv.base.publish import publish
from hpcenv.base.record import load_json
from hpcenv.image.manifest import Manifest

SIF = "image.sif"
MANIFEST = "manifest.json"
LOCK = "lock.json"
RECORD = "record.json"
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Record:
    """What the store knows of an image beside its manifest.

    Attributes
    ----------
    sif : Digest
        SHA-256 of the SIF, unsigned.
    key : Digest
        Key of the stage that it was packed from.
    size : int
        Of the SIF, in bytes.
    tools : tuple of str
        Programs that packed it, with their versions.
    """

    sif: Digest
    key: Digest
    size: int
    tools: tuple[str, ...]


@dataclass(frozen=True)
class Image:
    """An image of the store; `folder` is the link that its tag is."""

    name: str
    tag: str
    folder: Path

    @property
    def sif(self) -> Path:
        """The image file."""
        return self.folder / SIF

    @property
    def lock(self) -> Path:
        """The lock that it was built from."""
        return self.folder / LOCK

    @property
    def manifest(self) -> Manifest:
        """What is inside."""
        return load_json(Manifest, self.folder / MANIFEST)

    @property
    def record(self) -> Record:
        """What the store knows of it."""
        return load_json(Record, self.folder / RECORD)

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}"


class Store:
    """The user's store, and a shared one of the site that is only read.

    Parameters
    ----------
    root : Path
        Made at the first write.
    shared : Path, optional
        Searched for images after the user's own.
    """

    def __init__(self, root: Path, shared: Path | None = None) -> None:
        self.root = root
        self.shared = shared
        self.blobs = Blobs(root / "blobs")
        self.stages = root / "stages"
        self.packed = root / "packed"
        self.scratch = root / "scratch"

    def stage(self, key: Digest) -> Path:
        """Where the layer of a stage lies, or would lie."""
        return self.stages / key

    @contextmanager
    def locked(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Keep others of this store from making the same thing meanwhile.

        `waiting` is called once where somebody else is at it.
        """
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / key).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise Outside(
                    f"cannot lock: {error.strerror}",
                    where=str(folder / key),
                    remedy="HPCENV_STORE names another folder, on a file system with flock",
                ) from None
            yield

    def images(self) -> list[Image]:
        """Return all images, by name and tag; the user's own hide shared ones of the same name."""
        found = {
            (link.parent.name, link.name): Image(link.parent.name, link.name, link)
            for root in (self.shared, self.root)
            if root is not None
            for link in (root / "images").glob("*/*")
            if (link / SIF).is_file()
        }
        return [found[key] for key in sorted(found)]

    def with_key(self, key: Digest) -> Path | None:
        """Return the folder of the image that was packed from a stage, if there is one."""
        folder = self.packed / key
        return folder if (folder / SIF).is_file() else None

    def tag(self, name: str, tag: str, key: Digest) -> Image:
        """Point ``name:tag`` to the image packed from a stage."""
        link = self.root / "images" / name / tag
        with publish(link) as beside:
            beside.symlink_to(Path("../../packed") / key)
        return Image(name, tag, link)

    def find(self, ref: str) -> Image | Path:
        """Return the image of ``name:tag`` or ``name`` (the last one tagged), or a file's path.

        Raises
        ------
        BadInput
            If there is none, with the nearest names.
        """
        path = Path(ref).expanduser()
        if path.exists() and ("/" in ref or path.suffix == ".sif"):
            return path
        images = self.images()
        name, _, tag = ref.partition(":")
        matching = [image for image in images if image.name == name and tag in ("", image.tag)]
        if matching:
            return max(matching, key=lambda image: image.folder.lstat().st_mtime_ns)
        known = [str(image) for image in images]
        near = difflib.get_close_matches(ref, [*known, *{image.name for image in images}], 3, 0.5)
        if "/" in ref or path.suffix == ".sif":
            raise BadInput(f"there is no file {ref}", remedy="hpcenv image list shows the store's")
        raise BadInput(
            f"there is no image {ref} in {self.root}",
            remedy=f"did you mean {' or '.join(near)}?"
            if near
            else f"hpcenv build {name}; hpcenv image list shows what there is",
        )


def parse_tag(text: str) -> tuple[str, str]:
    """Split ``name:tag``.

    Raises
    ------
    BadInput
        If it is not a name of lower-case letters, digits and ``._-``, a colon, and a tag.
    """
    name, colon, tag = text.partition(":")
    if not _NAME.fullmatch(name) or not colon or not _TAG.fullmatch(tag):
        raise BadInput(
            f"{text!r} is not NAME:TAG",
            remedy="such as tensorflow-horovod:2026.12, the name in lower case",
        )
    return name, tag
