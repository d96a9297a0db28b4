"""Where this host, or this site, takes packages from. Read from its own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        Path of the keyring on this host that the archive's signature is checked against; empty
        where apt's own trusted keys are.
    check_valid_until : bool
        Whether an expired Release file is refused.
    """

    url: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    keyring: str
    check_valid_until: bool = True


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
    no_index : bool
        Whether pip is told to use no index, only `find_links`.
    extra_indexes, find_links, constraints, trusted_hosts : tuple of str
        As pip is configured.
    proxy : str, optional
        Proxy URL for indexes and archives, without user and password.
    apt_proxy : str, optional
        Apt's own proxy, without user and password; ``DIRECT`` where apt is told to use none.
    no_proxy : tuple of str
        Hosts that are reached without a proxy.
    ca_bundle : str, optional
        Path of the certificates that TLS is checked against.
    where : mapping
        For each field that was set, the file or the variable that set it.
    notes : tuple of str
        What was left out or removed, a sentence each.
    """

    apt: tuple[AptSource, ...] = ()
    index: str | None = None
    no_index: bool = False
    extra_indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    proxy: str | None = None
    apt_proxy: str | None = None
    no_proxy: tuple[str, ...] = ()
    ca_bundle: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
