"""The wheel that puts our own runtime into an image: `hpcenv.base` and `hpcenv.runtime`, no more.

It is made from the installed package, and equal bytes come out wherever and whenever it is made:
the members are sorted, stored uncompressed (compressors differ between hosts), and have one time.
Its version carries the hash of its content, so an image says which runtime it has.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import hpcenv

NAME = "hpcenv-runtime"

REQUIRES = ("mpi4py>=4", "numpy>=1.24")
"""What the runtime imports; the framework comes with the recipe."""

_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can say
_SCRIPTS = {
    "hpcenv-train": "hpcenv.runtime.train.cli:main",
    "hpcenv-stage": "hpcenv.runtime.stage.cli:main",
}


@dataclass(frozen=True)
class RuntimeWheel:
    """A wheel: its file name, version and bytes."""

    file: str
    version: str
    content: bytes


def runtime_wheel(package: Path | None = None) -> RuntimeWheel:
    """Make the wheel.

    Parameters
    ----------
    package : Path, optional
        The folder of the package `hpcenv`; the installed one when left out.
    """
    members = _sources(package or Path(hpcenv.__file__).parent)
    tree = hashlib.sha256()
    for name, content in members.items():
        tree.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    version = f"{hpcenv.__version__}+{tree.hexdigest()[:12]}"
    info = f"{NAME.replace('-', '_')}-{version}.dist-info"
    members |= {
        f"{info}/METADATA": _metadata(version),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: hpcenv {hpcenv.__version__}\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n"
        ).encode(),
        f"{info}/entry_points.txt": (
            "[console_scripts]\n" + "".join(f"{k} = {v}\n" for k, v in _SCRIPTS.items())
        ).encode(),
    }
    record = "".join(f"{n},{_hash(content)},{len(content)}\n" for n, content in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return RuntimeWheel(
        f"{NAME.replace('-', '_')}-{version}-py3-none-any.whl", version, _zip(members)
    )


def _sources(package: Path) -> dict[str, bytes]:
    files = [package / "__init__.py"]
    for part in ("base", "runtime"):
        files += [
            file
            for file in (package / part).rglob("*")
            if file.is_file()
            and "__pycache__" not in file.parts
            and file.suffix != ".pyc"
            and not file.name.startswith(".")
        ]
    found = {file.relative_to(package.parent).as_posix(): file.read_bytes() for file in files}
    return dict(sorted(found.items()))


def _metadata(version: str) -> bytes:
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in REQUIRES)
    return (
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
        "Summary: The trainer and the staging of hpcenv, as they lie in its images\n"
        f"License: Apache-2.0\nRequires-Python: >=3.11\n{requires}"
    ).encode()


def _hash(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()
