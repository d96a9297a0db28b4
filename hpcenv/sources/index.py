"""Find a file of a Python package index by its name and SHA-256.

A lock has no URL. Where a wheel lies is asked of the indexes and folders that this host's pip is
configured with: simple indexes over HTTP (JSON or HTML), simple indexes in a folder (``file://``),
and find-links, as pages or as plain folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import requests
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    NoSuchProjectError,
    ProjectPage,
    PyPISimple,
    RepositoryPage,
    UnparsableFilenameError,
    parse_filename,
)

from hpcenv.base.blobs import Digest
from hpcenv.base.errors import Failure, Outside
from hpcenv.base.together import together
from hpcenv.sources.download import host_of, session
from hpcenv.sources.mirrors import Mirrors


@dataclass(frozen=True)
class Offer:
    """A file as an index or a folder offers it.

    Attributes
    ----------
    url : str
        Where it lies; ``file://`` for a folder of this host.
    sha256 : Digest, optional
        None where the index does not say.
    size : int, optional
        Bytes; None where the index does not say.
    """

    file: str
    version: str | None
    url: str
    sha256: Digest | None
    size: int | None


def offers(projects: Iterable[str], mirrors: Mirrors) -> dict[str, tuple[Offer, ...]]:
    """Return what the configured indexes and folders offer of each project.

    Asked in parallel; the order is that of the configuration: the index, the extra ones, the
    folders.

    Raises
    ------
    Outside
        If an index cannot be reached; the others' answers do not stand in for it.
    """
    names = list(dict.fromkeys(projects))
    indexes: tuple[str, ...] = ()
    if not mirrors.no_index:
        indexes = (mirrors.index or PYPI_SIMPLE_ENDPOINT, *mirrors.extra_indexes)
    asked = [(name, index) for name in names for index in indexes]
    with session(mirrors) as http:
        answers = together(
            *(partial(_project, index, name, http) for name, index in asked),
            *(partial(_links, links, http) for links in mirrors.find_links),
        )
    linked = [offer for answer in answers[len(asked) :] for offer in answer]
    found: dict[str, list[Offer]] = {name: [] for name in names}
    for (name, _), answer in zip(asked, answers, strict=False):
        found[name] += answer
    return {
        name: (*offered, *(offer for offer in linked if _project_of(offer.file) == name))
        for name, offered in found.items()
    }


def locate(files: Mapping[str, Digest], mirrors: Mirrors) -> dict[str, tuple[str, ...]]:
    """Return the URLs at which each file may be had, those with the right digest first.

    Parameters
    ----------
    files : mapping of str to Digest
        File name of a wheel or source distribution, and its SHA-256.

    Returns
    -------
    dict of str to tuple of str
        Empty where no index lists the file, or all list another content under its name.

    Raises
    ------
    Outside
        If an index cannot be reached.
    """
    projects = {file: _project_of(file) for file in files}
    offered = offers([name for name in projects.values() if name], mirrors)
    return {
        file: _urls(offered.get(projects[file] or "", ()), file, digest)
        for file, digest in files.items()
    }


def size_at(url: str, mirrors: Mirrors) -> int | None:
    """Return the size in bytes that a server says a file has; None where it does not say.

    Raises
    ------
    Outside
        If the server cannot be reached.
    """
    with session(mirrors) as http:
        try:
            answer = http.head(url, allow_redirects=True, timeout=30)
        except requests.RequestException as error:
            raise _unreachable(url, error) from None
    length = answer.headers.get("Content-Length", "")
    return int(length) if answer.ok and length.isdigit() else None


def normal(name: str) -> str:
    """Return a project's name as indexes spell it: lower case, one dash between words."""
    return "-".join(filter(None, name.lower().replace("_", "-").replace(".", "-").split("-")))


def _urls(offered: Sequence[Offer], file: str, digest: Digest) -> tuple[str, ...]:
    same = [offer for offer in offered if offer.file == file]
    sure = [offer.url for offer in same if offer.sha256 == digest]
    unsaid = [offer.url for offer in same if offer.sha256 is None]
    return tuple(dict.fromkeys(sure + unsaid))


def _project_of(file: str) -> str | None:
    try:
        return normal(parse_filename(file)[0])
    except UnparsableFilenameError:
        return None


def _project(index: str, name: str, http: requests.Session) -> list[Offer]:
    try:
        if urlsplit(index).scheme in ("", "file"):
            return _project_in_folder(_path(index), name)
        with PyPISimple(index, session=http) as client:
            return [_offer(p) for p in client.get_project_page(name, timeout=30).packages]
    except NoSuchProjectError:
        return []
    except (requests.RequestException, ValueError) as error:
        raise _unreachable(index, error) from None


def _project_in_folder(index: Path, name: str) -> list[Offer]:
    folder = index / name
    page = folder / "index.html"
    if page.is_file():
        html = ProjectPage.from_html(name, page.read_bytes(), base_url=page.as_uri())
        return [_offer(package) for package in html.packages]
    return _folder(folder)


def _links(links: str, http: requests.Session) -> list[Offer]:
    if urlsplit(links).scheme not in ("", "file"):
        try:
            answer = http.get(links, timeout=30)
            answer.raise_for_status()
        except requests.RequestException as error:
            raise _unreachable(links, error) from None
        return _page(answer.content, answer.url)
    path = _path(links)
    if path.is_file():
        return _page(path.read_bytes(), path.as_uri())
    return _folder(path)


def _page(html: bytes, base: str) -> list[Offer]:
    page = RepositoryPage.from_html(html, base_url=base)
    return [_offer(DistributionPackage.from_link(link)) for link in page.links]


def _folder(folder: Path) -> list[Offer]:
    if not folder.is_dir():
        return []
    return [
        Offer(file.name, None, file.absolute().as_uri(), None, file.stat().st_size)
        for file in sorted(folder.iterdir())
        if file.name.endswith((".whl", ".tar.gz", ".zip"))
    ]


def _offer(package: DistributionPackage) -> Offer:
    parts = urlsplit(package.url)
    size = package.size
    if size is None and parts.scheme == "file":
        file = Path(unquote(parts.path))
        size = file.stat().st_size if file.is_file() else None
    digest = package.digests.get("sha256")
    return Offer(
        file=package.filename,
        version=package.version,
        url=urlunsplit(parts._replace(fragment="")),
        sha256=Digest(digest) if digest else None,
        size=size,
    )


def _path(place: str) -> Path:
    return Path(unquote(urlsplit(place).path)) if place.startswith("file:") else Path(place)


def _unreachable(index: str, error: Exception) -> Failure:
    answer = getattr(error, "response", None)
    why = f"it answered {answer.status_code}" if answer is not None else type(error).__name__
    return Outside(
        f"cannot read the package index at {host_of(index)} ({why})",
        remedy="check the network, and pip's configuration: python3 -m pip config list",
    )
