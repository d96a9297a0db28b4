"""Bring files into the content-addressed store: in parallel, resumable, verified.

A file is written beside the store under the name of its digest, so that a download that was
broken off goes on where it stopped, whoever starts it again; it enters the store only when its
size and SHA-256 are right.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import should_bypass_proxies

from hpcenv.base.blobs import Blobs, Digest
from hpcenv.base.errors import Failure, Outside, Refused
from hpcenv.base.publish import publish
from hpcenv.base.together import AT_ONCE, as_they_end
from hpcenv.sources.logins import apt_login
from hpcenv.sources.mirrors import Mirrors

_CONNECT_S, _READ_S = 10.0, 30.0
_TRIES = 5
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Wanted:
    """A file to bring.

    Attributes
    ----------
    name : str
        What it is called in messages.
    size : int
        Bytes.
    urls : tuple of str
        Where to look, in this order: ``http``, ``https`` or ``file``.
    """

    name: str
    size: int
    sha256: Digest
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Tally:
    """How far the downloads are: whole files, and bytes that have arrived or were there."""

    files: int
    files_done: int
    bytes: int
    bytes_done: int


Progress: TypeAlias = Callable[[Tally], None]


def session(mirrors: Mirrors) -> requests.Session:
    """Return an HTTP session with the mirrors' proxies and certificates."""
    made = _Session(mirrors)
    made.mount("https://", HTTPAdapter(pool_maxsize=AT_ONCE))
    made.mount("http://", HTTPAdapter(pool_maxsize=AT_ONCE))
    made.headers["Accept-Encoding"] = "identity"
    return made


class _Session(requests.Session):
    """What the mirrors say comes before the environment, which `requests` would prefer."""

    def __init__(self, mirrors: Mirrors) -> None:
        super().__init__()
        self._mirrors = mirrors
        self._archives = {urlsplit(source.url).hostname for source in mirrors.apt}

    def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
        if request.auth is None and urlsplit(request.url).hostname in self._archives:
            request.auth = apt_login(str(request.url))
        return super().prepare_request(request)

    def merge_environment_settings(self, url, proxies, stream, verify, cert):  # type: ignore[no-untyped-def]
        merged = super().merge_environment_settings(url, proxies, stream, verify, cert)
        host = urlsplit(url).hostname
        proxy = self._mirrors.proxy
        if host in self._archives and self._mirrors.apt_proxy:
            proxy = self._mirrors.apt_proxy
        if proxy == "DIRECT" or should_bypass_proxies(
            url, ",".join(self._mirrors.no_proxy) or None
        ):
            merged["proxies"] = {}
        elif proxy:
            merged["proxies"] = {"http": proxy, "https": proxy}
        if host in self._mirrors.trusted_hosts:
            merged["verify"] = False
        elif self._mirrors.ca_bundle:
            merged["verify"] = self._mirrors.ca_bundle
        return merged


def download(
    wanted: Sequence[Wanted],
    blobs: Blobs,
    mirrors: Mirrors,
    progress: Progress = lambda tally: None,
) -> None:
    """Bring what the store lacks.

    Parameters
    ----------
    wanted : sequence of Wanted
        What is in the store already is not asked for.
    progress : callable
        Told how far it is, from several threads, one at a time.

    Raises
    ------
    Outside
        If a file cannot be had; names each such file, the hosts asked and what to do.
    Refused
        If a file is not the one that was wanted; nothing of it is stored.
    """
    missing = list({item.sha256: item for item in wanted if not blobs.has(item.sha256)}.values())
    if not missing:
        return
    counter, stop = _Counter(missing, progress), threading.Event()
    failures: list[Failure] = []
    with session(mirrors) as http:
        jobs = [
            partial(_bring, item, blobs, http, counter, stop)
            for item in sorted(missing, key=lambda item: -item.size)
        ]
        try:
            for _, result in as_they_end(jobs):
                if isinstance(result, Failure):
                    failures.append(result)
                elif result is not None:
                    raise result
                # A host that cannot be reached will not be for the others; a file that is gone
                # from its mirror says nothing of the next one.
                if isinstance(result, _Unreachable):
                    break
        finally:
            stop.set()
    if failures:
        raise _together(failures, len(missing))


class _Stopped(Exception):
    pass


class _Unreachable(Outside):
    pass


class _Counter:
    def __init__(self, items: Sequence[Wanted], progress: Progress) -> None:
        self._lock = threading.Lock()
        self._files, self._bytes = len(items), sum(item.size for item in items)
        self._files_done = self._bytes_done = 0
        self._progress = progress

    def add(self, count: int, files: int = 0) -> None:
        with self._lock:
            self._bytes_done += count
            self._files_done += files
            self._progress(Tally(self._files, self._files_done, self._bytes, self._bytes_done))


def _bring(
    item: Wanted, blobs: Blobs, http: requests.Session, counter: _Counter, stop: threading.Event
) -> None:
    incoming = blobs.root / ".incoming" / item.sha256
    incoming.parent.mkdir(parents=True, exist_ok=True)
    with _claimed(incoming) as out:
        if blobs.has(item.sha256):  # another process brought it meanwhile
            incoming.unlink()
            counter.add(item.size, files=1)
            return
        try:
            _fill(item, out, http, counter, stop)
        except OSError as error:
            raise Outside(
                f"cannot write to the store: {error.strerror or error}",
                where=str(blobs.root),
                remedy="make room there, or name another place in HPCENV_STORE; what has arrived "
                "is kept",
            ) from None
        except Failure as failure:
            # What has arrived so far is kept for the next attempt, unless it is wrong.
            if isinstance(failure, Refused) or incoming.stat().st_size == 0:
                incoming.unlink()
            raise
        out.flush()
        with publish(blobs.path(item.sha256)) as beside:
            incoming.chmod(0o644)
            incoming.rename(beside)
        counter.add(0, files=1)


@contextlib.contextmanager
def _claimed(incoming: Path) -> Iterator[IO[bytes]]:
    """Open a partial file for us alone, among threads and processes; what is in it stays."""
    while True:
        with incoming.open("a+b") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            # Whoever had it before us may have finished and moved it away.
            if incoming.exists() and incoming.stat().st_ino == os.fstat(out.fileno()).st_ino:
                yield out
                return


def _fill(
    item: Wanted, out: IO[bytes], http: requests.Session, counter: _Counter, stop: threading.Event
) -> None:
    """Write the whole file, from the first place that has it, and check it."""
    gone: list[str] = []
    for url in item.urls:
        try:
            found = _from(url, item, out, http, counter, stop)
        except _NotThere as absent:
            gone.append(f"{host_of(url)}: {absent}")
            continue
        if found != item.sha256:
            raise Refused(
                f"{host_of(url)} gave another content: SHA-256 {found}, locked {item.sha256}",
                where=item.name,
                remedy="do not use it; look at the mirror, or lock again with --upgrade",
            )
        return
    asked = "; ".join(gone) or "no configured mirror or index lists it"
    raise Outside(
        f"cannot be had any more ({asked})",
        where=item.name,
        remedy="superseded upstream?  hpcenv lock … --upgrade takes what there is now; or take it "
        "from a snapshot mirror (in this host's apt or pip configuration) or another store",
    )


class _NotThere(Exception):
    pass


def _from(
    url: str,
    item: Wanted,
    out: IO[bytes],
    http: requests.Session,
    counter: _Counter,
    stop: threading.Event,
) -> str:
    """Fetch one URL to its end, going on after each break; return the SHA-256 of the result."""
    state, have = _so_far(out)
    counter.add(have)
    tries = 0
    while have < item.size:
        before = have
        try:
            for chunk in _chunks(url, have, http):
                if stop.is_set():
                    raise _Stopped
                if isinstance(chunk, _FromStart):
                    counter.add(-have)
                    have, state = 0, hashlib.sha256()
                    out.truncate(0)
                    continue
                out.write(chunk)
                state.update(chunk)
                have += len(chunk)
                counter.add(len(chunk))
                if have > item.size:
                    return f"of a file longer than {item.size} bytes"
        except requests.exceptions.SSLError as error:
            raise _Unreachable(
                f"{host_of(url)}'s certificate was not accepted ({_short(error)})",
                where=item.name,
                remedy="name the certificates: ca_bundle in [mirrors] of the profile, or PIP_CERT",
            ) from None
        except requests.exceptions.RequestException as error:
            tries = 0 if have > before else tries + 1
            if tries >= _TRIES or (have == 0 and isinstance(error, requests.ConnectionError)):
                raise _Unreachable(
                    f"cannot reach {host_of(url)} ({_short(error)})",
                    where=item.name,
                    remedy="check the network and proxy; what has arrived is kept, so try again: "
                    "with everything in the store, --offline needs no network",
                ) from None
            time.sleep(min(0.1 * 2**tries, 2.0))
        else:
            if have < item.size:
                return f"of a file of {have} bytes, not {item.size}"
    return state.hexdigest()


class _FromStart:
    """The server sends from the first byte, not from where we were."""


def _chunks(url: str, start: int, http: requests.Session) -> Iterator[bytes | _FromStart]:
    if urlsplit(url).scheme == "file":
        yield from _local(Path(unquote(urlsplit(url).path)), start)
        return
    headers = {"Range": f"bytes={start}-"} if start else {}
    with http.get(url, headers=headers, stream=True, timeout=(_CONNECT_S, _READ_S)) as answer:
        if answer.status_code in (404, 410):
            raise _NotThere(f"{answer.status_code} {answer.reason}")
        if answer.status_code in (401, 403, 407):
            raise _NotThere(f"{answer.status_code} {answer.reason}: it wants a password")
        if answer.status_code == 416 or (start and answer.status_code == 200):
            yield _FromStart()
        if answer.status_code == 416:
            return
        answer.raise_for_status()
        yield from answer.iter_content(_CHUNK)


def _local(file: Path, start: int) -> Iterator[bytes]:
    if not file.is_file():
        raise _NotThere(f"no file {file}")
    with file.open("rb") as source:
        source.seek(start)
        while chunk := source.read(_CHUNK):
            yield chunk


def _so_far(out: IO[bytes]) -> tuple[hashlib._Hash, int]:
    """Hash what an earlier attempt left."""
    state, size = hashlib.sha256(), 0
    out.seek(0)
    while chunk := out.read(1 << 20):
        state.update(chunk)
        size += len(chunk)
    return state, size


def host_of(url: str) -> str:
    """The host of a URL, or ``this host`` for a local file; never its user or password."""
    return urlsplit(url).hostname or "this host"


def _short(error: requests.RequestException) -> str:
    if error.response is not None:
        return f"it answered {error.response.status_code} {error.response.reason}"
    text = str(error)
    for words in ("Name or service not known", "Temporary failure in name resolution"):
        if words in text:
            return words
    for words in (
        "Connection refused",
        "timed out",
        "Network is unreachable",
        "CERTIFICATE_VERIFY",
    ):
        if words in text:
            return words.lower()
    return type(error).__name__


def _together(failures: Sequence[Failure], asked: int) -> Failure:
    # What was tampered with comes first: it must not hide behind a network's troubles.
    ordered = sorted(failures, key=lambda failure: not isinstance(failure, Refused))
    first = ordered[0]
    if len(ordered) == 1:
        return first
    lines = [f"{len(failures)} of {asked} files could not be fetched"]
    lines += [f"{failure.where}: {failure.says}" for failure in ordered[:8]]
    more = len(failures) - 8
    lines += [f"and {more} more"] if more > 0 else []
    return type(first)("\n    ".join(lines), remedy=first.remedy)
