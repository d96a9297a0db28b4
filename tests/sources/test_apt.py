"""apt with a state of ours, against an archive made and signed here, and against Debian's own."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import Site, serving

from hpcenv.base.errors import BadInput, Outside
from hpcenv.sources.apt import BASE, open_suite, sources_for
from hpcenv.sources.configured import detect_mirrors
from hpcenv.sources.mirrors import AptSource, Mirrors

PACKAGES = {
    "tool": ("1:2.0-1", "Depends: library (>= 1.1), helper | other\nRecommends: extra\n"),
    "library": ("1.1+deb12u1", ""),
    "helper": ("0.5", ""),
    "other": ("0.5", ""),
    "extra": ("9", ""),
    "basis": ("1", "Essential: yes\nPriority: required\n"),
    "broken": ("1", "Depends: nowhere\n"),
}


@dataclass
class Archive:
    """A small Debian archive: two suites, signed with a key of its own."""

    site: Site
    keyring: Path
    home: Path

    def mirrors(self, keyring: Path | None = None) -> Mirrors:
        source = AptSource(
            f"{self.site.url}/debian",
            ("bookworm", "bookworm-updates"),
            ("main",),
            str(keyring or self.keyring),
        )
        return Mirrors(apt=(source,))

    def publish(self, suite: str, names: list[str], codename: str) -> None:
        text = "".join(
            f"Package: {name}\nVersion: {PACKAGES[name][0]}\nArchitecture: amd64\n"
            f"Maintainer: t <t@example.org>\n{PACKAGES[name][1]}"
            f"Filename: pool/main/{name[0]}/{name}/{name}_{PACKAGES[name][0].split(':')[-1]}"
            f"_amd64.deb\nSize: {len(name)}\n"
            f"SHA256: {hashlib.sha256(name.encode()).hexdigest()}\nDescription: t\n\n"
            for name in names
        ).encode()
        packed = gzip.compress(text)
        sums = "".join(
            f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-amd64/Packages{end}\n"
            for data, end in ((text, ""), (packed, ".gz"))
        )
        release = (
            f"Origin: Debian\nSuite: test\nCodename: {codename}\nDate: {formatdate(usegmt=True)}\n"
            f"Architectures: amd64\nComponents: main\nSHA256:\n{sums}"
        ).replace("GMT", "UTC")
        base = f"/debian/dists/{suite}"
        self.site.files[f"{base}/main/binary-amd64/Packages.gz"] = packed
        self.site.files[f"{base}/main/binary-amd64/Packages"] = text
        self.site.files[f"{base}/InRelease"] = self._signed(release)

    def _signed(self, text: str) -> bytes:
        return _gpg(self.home, "--clearsign", "--digest-algo", "SHA512", data=text.encode())


def _gpg(home: Path, *words: str, data: bytes = b"") -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--yes"]
    command += ["--passphrase", "", "--pinentry-mode", "loopback", *words]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def key(home: Path) -> Path:
    home.mkdir(mode=0o700)
    _gpg(home, "--quick-generate-key", "test <t@example.org>", "rsa2048", "sign", "never")
    keyring = home / "keyring.gpg"
    keyring.write_bytes(_gpg(home, "--export"))
    return keyring


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Path]]:
    # gpg's agent has a socket in its home, whose path may not be long.
    folder = tmp_path_factory.mktemp("k")
    homes = folder / "a", folder / "b"
    yield key(homes[0]), key(homes[1]), homes[0]
    for home in homes:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


@pytest.fixture
def archive(keys: tuple[Path, Path, Path]) -> Iterator[Archive]:
    with serving() as site:
        made = Archive(site, keys[0], keys[2])
        made.publish(
            "bookworm",
            ["tool", "library", "helper", "other", "extra", "basis", "broken"],
            "bookworm",
        )
        made.publish("bookworm-updates", [], "bookworm-updates")
        yield made


def test_a_solution_is_complete_without_what_is_recommended(
    archive: Archive, tmp_path: Path
) -> None:
    suite = open_suite(tmp_path, archive.mirrors(), "bookworm")
    found = {deb.name: deb for deb in suite.solve(["tool"], base=["?essential"])}
    assert sorted(found) == ["basis", "helper", "library", "tool"]
    tool = found["tool"]
    assert (tool.version, tool.arch, tool.size) == ("1:2.0-1", "amd64", 4)
    assert tool.path == "pool/main/t/tool/tool_2.0-1_amd64.deb"
    assert tool.sha256 == hashlib.sha256(b"tool").hexdigest()
    assert tool.url == f"{archive.site.url}/debian/{tool.path}"
    assert found["library"].version == "1.1+deb12u1"


def test_packages_by_name_come_alone(archive: Archive, tmp_path: Path) -> None:
    suite = open_suite(tmp_path, archive.mirrors(), "bookworm")
    assert [deb.name for deb in suite.named(["tool", "extra"])] == ["tool", "extra"]


def test_releases_are_those_that_were_signed(archive: Archive, tmp_path: Path) -> None:
    suite = open_suite(tmp_path, archive.mirrors(), "bookworm")
    signed = archive.site.files["/debian/dists/bookworm/InRelease"]
    releases = {release.suite: release for release in suite.releases()}
    assert sorted(releases) == ["bookworm", "bookworm-updates"]
    assert releases["bookworm"].sha256 == hashlib.sha256(signed).hexdigest()
    assert releases["bookworm"].date[:4].isdigit() and releases["bookworm"].date.endswith("Z")


def test_another_suite_than_the_hosts(archive: Archive, tmp_path: Path) -> None:
    archive.publish("trixie", ["extra"], "trixie")
    archive.publish("trixie-updates", [], "trixie-updates")
    suite = open_suite(tmp_path, archive.mirrors(), "trixie")
    assert [deb.name for deb in suite.named(["extra"])] == ["extra"]


def test_unknown_packages_are_named(archive: Archive, tmp_path: Path) -> None:
    suite = open_suite(tmp_path, archive.mirrors(), "bookworm")
    with pytest.raises(BadInput, match="no package 'tol', 'nix'") as raised:
        suite.solve(["tool", "tol", "nix"], base=[])
    assert raised.value.status == 2
    with pytest.raises(BadInput, match="no package 'nix'"):
        suite.named(["nix"])


def test_what_cannot_be_installed_says_why(archive: Archive, tmp_path: Path) -> None:
    suite = open_suite(tmp_path, archive.mirrors(), "bookworm")
    with pytest.raises(BadInput, match="broken : Depends: nowhere"):
        suite.solve(["broken"], base=[])


def test_a_foreign_signature_is_refused(
    archive: Archive, keys: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(Outside, match="signature") as raised:
        open_suite(tmp_path, archive.mirrors(keyring=keys[1]), "bookworm")
    assert raised.value.status == 3


def test_a_changed_release_is_refused(archive: Archive, tmp_path: Path) -> None:
    place = "/debian/dists/bookworm/InRelease"
    archive.site.files[place] = archive.site.files[place].replace(b"Suite: test", b"Suite: tesT")
    with pytest.raises(Outside, match="signature"):
        open_suite(tmp_path, archive.mirrors(), "bookworm")


def test_a_changed_index_is_refused(archive: Archive, tmp_path: Path) -> None:
    for end in ("", ".gz"):
        place = f"/debian/dists/bookworm/main/binary-amd64/Packages{end}"
        data = archive.site.files[place]
        text = (gzip.decompress(data) if end else data).replace(b"Version: 9", b"Version: 8")
        archive.site.files[place] = gzip.compress(text) if end else text
    with pytest.raises(Outside, match=r"Hash Sum mismatch|unexpected size"):
        open_suite(tmp_path, archive.mirrors(), "bookworm")


def test_an_unsigned_archive_is_refused(archive: Archive, tmp_path: Path) -> None:
    del archive.site.files["/debian/dists/bookworm/InRelease"]
    with pytest.raises(Outside):
        open_suite(tmp_path, archive.mirrors(), "bookworm")


def test_a_refused_update_does_not_spoil_what_was_there(archive: Archive, tmp_path: Path) -> None:
    before = open_suite(tmp_path, archive.mirrors(), "bookworm").named(["extra"])
    place = "/debian/dists/bookworm/InRelease"
    good = archive.site.files[place]
    archive.site.files[place] = good.replace(b"Suite: test", b"Suite: tesT")
    with pytest.raises(Outside):
        open_suite(tmp_path, archive.mirrors(), "bookworm")
    archive.site.files[place] = good
    assert open_suite(tmp_path, archive.mirrors(), "bookworm").named(["extra"]) == before


def test_no_archive_says_where_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no Debian archive") as raised:
        open_suite(tmp_path, Mirrors(), "bookworm")
    assert raised.value.remedy and "sources.list" in raised.value.remedy


def test_an_archive_that_is_not_there_ends_in_seconds(tmp_path: Path) -> None:
    source = AptSource("http://nowhere.invalid/debian", ("bookworm",), ("main",), "")
    with pytest.raises(Outside, match=r"nowhere\.invalid"):
        open_suite(tmp_path, Mirrors(apt=(source,)), "bookworm")


CODENAMES = st.sampled_from(["bullseye", "bookworm", "trixie", "stable"])
POCKETS = st.sampled_from(["", "-updates", "-security", "-backports", "-proposed-updates"])


@given(st.lists(st.tuples(CODENAMES, st.lists(POCKETS, min_size=1)), max_size=3), CODENAMES)
def test_a_hosts_suites_stand_for_the_wanted_one(offered, wanted: str) -> None:
    apt = tuple(
        AptSource(
            f"http://m{i}/debian",
            tuple(base + pocket for pocket in pockets),
            ("main", "non-free"),
            "k",
        )
        for i, (base, pockets) in enumerate(offered)
    )
    for source in sources_for(Mirrors(apt=apt), wanted):
        assert set(source.suites) <= {wanted, f"{wanted}-updates", f"{wanted}-security"}
        assert source.components == ("main",) and source.keyring == "k"
        host = next(each for each in apt if each.url == source.url)
        for suite in source.suites:
            assert any(name.endswith(suite.removeprefix(wanted)) for name in host.suites)


def test_archives_of_others_are_left_out() -> None:
    foreign = AptSource("http://x/node", ("nodistro",), ("main",), "k")
    ubuntu = AptSource("http://x/ubuntu", ("jammy", "jammy-updates"), ("main",), "k")
    assert sources_for(Mirrors(apt=(foreign, ubuntu)), "bookworm") == ()


@pytest.mark.skipif(shutil.which("sqv") is not None, reason="sqv, which apt prefers, has no files")
def test_stopped_while_a_signature_is_checked_it_leaves_no_temporary_files(
    archive: Archive, tmp_path: Path
) -> None:
    tools, temporary, mark = tmp_path / "tools", tmp_path / "tmp", tmp_path / "checking"
    tools.mkdir()
    temporary.mkdir()
    slow = tools / "gpgv"
    slow.write_text(f"#!/bin/sh\ntouch {mark}\nexec sleep 1000\n")
    slow.chmod(0o755)
    script = (
        "import sys; from pathlib import Path; from hpcenv.sources.apt import open_suite;"
        "from hpcenv.sources.mirrors import AptSource, Mirrors;"
        "source = AptSource(sys.argv[2], ('bookworm',), ('main',), sys.argv[3]);"
        "open_suite(Path(sys.argv[1]), Mirrors(apt=(source,)), 'bookworm')"
    )
    source = archive.mirrors().apt[0]
    running = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lists"), source.url, source.keyring or ""],
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TMPDIR": str(temporary),
        },
    )
    until = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < until and running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == -signal.SIGINT
    assert list(temporary.iterdir()) == []
    names = {path.name for path in (tmp_path / "lists").rglob("*")}
    assert "apt.conf" in names and not {n for n in names if n.startswith(("apt.sig", "tmp"))}


@pytest.mark.network
def test_debians_own_archive_agrees_with_apt_cache(tmp_path: Path) -> None:
    suite = open_suite(tmp_path, detect_mirrors(), "bookworm")
    (deb,) = suite.named(["libopenmpi3"])
    shown = subprocess.run(
        ["apt-cache", "show", f"libopenmpi3={deb.version}"],
        env={**os.environ, "APT_CONFIG": str(suite.folder / "apt.conf")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    fields = dict(line.split(": ", 1) for line in shown.splitlines() if ": " in line)
    assert (fields["SHA256"], fields["Filename"], fields["Size"]) == (
        deb.sha256,
        deb.path,
        str(deb.size),
    )
    assert {"libc6", "dpkg", "apt", "python3"} <= {d.name for d in suite.solve(["python3"])}
    assert BASE[1] == "apt"
