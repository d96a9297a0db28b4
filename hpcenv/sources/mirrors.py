"""Where this host, or this site, takes packages from. Read from its own configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AptSource:
    """One Debian archive: its base URL, the suites offered there, and who signs it.

    Attributes
    ----------
    url : str
        Without user and password.
    suites, components : tuple of str
        As the host's own sources list has them.
    keyring : str
        Path of the keyring on this host that the archive's signature is checked against.
    """

    url: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    keyring: str


@dataclass(frozen=True)
class Mirrors:
    """Package mirrors, proxies and certificates, for `lock` and `fetch` alone.

    Nothing here may enter a lock, a build or an image.

    Attributes
    ----------
    apt : tuple of AptSource
        Debian archives.
    index : str, optional
        The simple index that pip uses; None leaves it to the client's own default.
    extra_indexes, find_links : tuple of str
        As pip is configured.
    proxy : str, optional
        Proxy URL, without user and password.
    ca_bundle : str, optional
        Path of the certificates that TLS is checked against.
    """

    apt: tuple[AptSource, ...] = ()
    index: str | None = None
    extra_indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    proxy: str | None = None
    ca_bundle: str | None = None
