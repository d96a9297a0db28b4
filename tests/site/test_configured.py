"""Mirrors, proxies and certificates as pip and apt themselves would take them, without secrets."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcenv.base.known import Known, Unknown
from hpcenv.base.record import dump_json
from hpcenv.site.model import SiteProfile
from hpcenv.site.profile import dump_site, parse_site
from hpcenv.site.summary import summary
from hpcenv.sources.configured import detect_mirrors, pip_options, without_login

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def bare(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which only what a test writes configures anything."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_CONFIG_DIRS": str(folder / "xdg"),
        **more,
    }


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


# -- pip, against pip ----------------------------------------------------------------------------

KEYS = ["index-url", "extra-index-url", "find-links", "cert", "proxy", "no-index", "constraint"]
VALUES = ["https://a.example.org/simple", "/srv/wheels", "one\n    two", "", "x = y", "1"]
SECTION = st.dictionaries(
    st.sampled_from(KEYS + [key.replace("-", "_") for key in KEYS]), st.sampled_from(VALUES)
)
CONFIG = st.dictionaries(st.sampled_from(["global", "install", "download"]), SECTION)
PLACES = ["xdg/pip/pip.conf", "home/.pip/pip.conf", "home/.config/pip/pip.conf", "named.conf"]


@settings(max_examples=8)
@given(
    st.dictionaries(st.sampled_from(PLACES), CONFIG),
    st.dictionaries(st.sampled_from(["PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"]), st.just("e")),
    st.booleans(),
)
def test_pip_takes_the_same(
    files: dict[str, dict[str, dict[str, str]]], variables: dict[str, str], named: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place, sections in files.items():
            lines = [
                line
                for section, options in sections.items()
                for line in (f"[{section}]", *(f"{key} = {v}" for key, v in options.items()))
            ]
            write(folder / place, "\n".join(lines) + "\n")
        env = bare(folder, **variables)
        if named:
            env["PIP_CONFIG_FILE"] = str(folder / "named.conf")
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], env=env, capture_output=True, text=True
        )
        assert listed.returncode == 0, listed.stderr
        pips: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
        for line in listed.stdout.splitlines():
            path, _, value = line.partition("=")
            section, _, key = path.rpartition(".")
            pips.setdefault(section, {})[key] = ast.literal_eval(value)
        wanted: dict[str, str] = {}
        for section in ("global", "install", ":env:"):
            # pip passes over an option without a value.
            wanted |= {key: value for key, value in pips[section].items() if value}
        wanted.pop("config-file", None)
        ours = pip_options(env, prefix=Path(sys.prefix))
        assert {k: o.value for k, o in ours.items() if k != "config-file"} == wanted


def test_a_file_named_null_turns_pips_files_off(tmp_path: Path) -> None:
    write(tmp_path / "home/.config/pip/pip.conf", "[global]\nindex-url = https://a.example.org/s\n")
    env = bare(tmp_path, PIP_CONFIG_FILE=os.devnull)
    assert detect_mirrors(env, root=tmp_path, prefix=tmp_path).index is None


def test_what_pip_is_told_is_taken_and_said_where(tmp_path: Path) -> None:
    write(
        tmp_path / "etc/pip.conf",
        "[global]\nindex-url = https://a.example.org/simple\ntrusted-host = a.example.org\n"
        "extra-index-url =\n    https://b.example.org/simple\n    https://c.example.org/simple\n"
        "proxy = http://proxy.example.org:3128\n",
    )
    write(
        tmp_path / "home/.config/pip/pip.conf",
        "[install]\nfind-links = /srv/wheels ./more\nconstraint = /srv/constraints.txt\n"
        "no-index = true\ncert = /etc/ssl/site.pem\n",
    )
    mirrors = detect_mirrors(bare(tmp_path), root=tmp_path, prefix=tmp_path)
    assert mirrors.index == "https://a.example.org/simple"
    assert mirrors.extra_indexes == (
        "https://b.example.org/simple",
        "https://c.example.org/simple",
    )
    assert mirrors.find_links == ("/srv/wheels", "./more")
    assert mirrors.constraints == ("/srv/constraints.txt",)
    assert mirrors.trusted_hosts == ("a.example.org",)
    assert mirrors.no_index
    assert mirrors.proxy == "http://proxy.example.org:3128"
    assert mirrors.ca_bundle == "/etc/ssl/site.pem"
    assert mirrors.where["index"] == str(tmp_path / "etc/pip.conf")
    assert mirrors.where["ca_bundle"] == "~/.config/pip/pip.conf"


def test_the_common_environment_counts_where_pip_is_told_nothing(tmp_path: Path) -> None:
    env = bare(
        tmp_path,
        HTTPS_PROXY="http://upper.example.org",
        https_proxy="http://lower.example.org",
        NO_PROXY="localhost, .example.org",
        SSL_CERT_FILE="/etc/a.pem",
        REQUESTS_CA_BUNDLE="/etc/b.pem",
    )
    mirrors = detect_mirrors(env, root=tmp_path, prefix=tmp_path)
    assert mirrors.proxy == "http://lower.example.org"
    assert mirrors.no_proxy == ("localhost", ".example.org")
    assert (mirrors.ca_bundle, mirrors.where["ca_bundle"]) == ("/etc/b.pem", "REQUESTS_CA_BUNDLE")


def test_nothing_configured_is_nothing_set(tmp_path: Path) -> None:
    mirrors = detect_mirrors(bare(tmp_path, PATH="/nowhere"), root=tmp_path, prefix=tmp_path)
    assert dump_json(mirrors) == dump_json(type(mirrors)())


# -- apt, against apt ----------------------------------------------------------------------------

DEB822 = f"""\
# the archive
Types: deb deb-src
URIs: http://one.example.org/debian http://two.example.org/debian/
# a comment within
Suites: bookworm
 bookworm-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb
Enabled: no
URIs: http://off.example.org/debian
Suites: sid
Components: main
"""
ONE_LINE = f"""\
deb [ arch=amd64 signed-by={KEYRING} ] http://three.example.org/debian trixie main # non-free
#deb http://no.example.org/debian sid main
deb-src http://src.example.org/debian trixie main
deb http://flat.example.org/repo ./
   deb	http://four.example.org/debian  sid   main  non-free
"""


def test_apt_takes_the_same(tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("there is no apt here")
    parts = tmp_path / "etc/apt/sources.list.d"
    write(parts / "a.sources", DEB822)
    write(parts / "b.list", ONE_LINE)
    write(parts / "c.list.disabled", "deb http://no.example.org/debian sid main\n")
    uris = subprocess.run(
        [
            *("apt-get", "update", "--print-uris"),
            *("-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={parts}"),
            *("-o", f"Dir::State={tmp_path}/state", "-o", f"Dir::Cache={tmp_path}/cache"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wanted = {line.split("'")[1] for line in uris.splitlines() if "InRelease" in line}
    # A source of sources alone is none of ours.
    wanted = {uri for uri in wanted if "src.example.org" not in uri}
    found = set()
    components = {}
    for source in detect_mirrors(bare(tmp_path), root=tmp_path, prefix=tmp_path).apt:
        components[source.url] = source.components
        for suite in source.suites:
            middle = suite if suite.endswith("/") else f"dists/{suite}/"
            found.add(f"{source.url.rstrip('/')}/{middle}InRelease")
    assert found == wanted
    packages = {line.split("'")[1] for line in uris.splitlines() if "/binary-all/" in line}
    for url, names in components.items():
        for name in names:
            assert any(p.startswith(url) and f"/{name}/binary-all/" in p for p in packages)
    assert components["http://three.example.org/debian"] == ("main",)


def test_apts_options(tmp_path: Path) -> None:
    if shutil.which("apt-config") is None:
        pytest.skip("there is no apt here")
    write(tmp_path / "etc/apt/sources.list", ONE_LINE)
    conf = write(
        tmp_path / "own.conf",
        'Acquire::http::Proxy "http://me:hidden@cache.example.org:3142/";\n'
        'Acquire::Check-Valid-Until "true";\n',
    )
    env = bare(tmp_path, APT_CONFIG=str(conf))
    mirrors = detect_mirrors(env, root=tmp_path, prefix=tmp_path)
    assert mirrors.apt_proxy == "http://cache.example.org:3142/"
    assert [source.keyring for source in mirrors.apt] == [KEYRING, "", ""]
    conf.write_text('Acquire::http::Proxy "DIRECT";\nAcquire::Check-Valid-Until "false";\n')
    mirrors = detect_mirrors(env, root=tmp_path, prefix=tmp_path)
    assert mirrors.apt_proxy == "DIRECT"
    assert not any(source.check_valid_until for source in mirrors.apt)


def test_a_key_within_the_file_is_said_not_to_be_taken(tmp_path: Path) -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==\n -----END PGP PUBLIC KEY BLOCK-----"
    text = (
        f"Types: deb\nURIs: http://one.example.org/d\nSuites: x\nComponents: y\nSigned-By:{key}\n"
    )
    write(tmp_path / "etc/apt/sources.list.d/k.sources", text)
    mirrors = detect_mirrors(bare(tmp_path), root=tmp_path, prefix=tmp_path)
    assert mirrors.apt[0].keyring == ""
    assert mirrors.notes == (
        "/etc/apt/sources.list.d/k.sources: its key stands in the file; write it to one of its own",
    )


# -- secrets -------------------------------------------------------------------------------------

SECRET = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=16).map(
    lambda text: f"Zq{text}qZ"
)
SHAPES = st.sampled_from(
    [
        "http://{user}:{password}@m.example.org/simple",
        "https://{user}:{password}@m.example.org:8443/simple/",
        "https://{user}@m.example.org/simple",
        "{user}:{password}@m.example.org:3128",
        "https://m.example.org/simple?token={password}",
        "https://m.example.org/simple#{password}",
        "mirror+https://{user}:{password}@m.example.org/list",
        "socks5h://{user}:{password}@m.example.org:1080",
        "git+ssh://{user}:{password}@m.example.org/x",
    ]
)


def unknown_site(mirrors: object) -> SiteProfile:
    nothing = Unknown("", "")
    names = ["arch", "cpu_features", "cpus", "os", "kernel", "libc"]
    names += ["mpis", "slurm", "driver", "gpus", "fabrics", "engines"]
    facts = dict.fromkeys(names, nothing)
    return SiteProfile(
        schema=1,
        name="x",
        privileged=Known(True, "declared", "profile"),
        mirrors=mirrors,  # type: ignore[arg-type]
        **facts,  # type: ignore[arg-type]
    )


@settings(max_examples=40)
@given(SECRET, SECRET, SHAPES)
def test_no_secret_gets_out(user: str, password: str, shape: str) -> None:
    url = shape.format(user=user, password=password)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = "".join(f"{key} = {url}\n" for key in ("index-url", "extra-index-url", "find-links"))
        proxies = f"proxy = {url}\ntrusted-host = {url}\n"
        write(folder / "etc/pip.conf", f"[global]\n{pip}{proxies}constraint = {url}\n")
        write(folder / "home/.config/pip/pip.conf", f"[install]\n{pip}")
        write(
            folder / "etc/apt/sources.list.d/a.sources",
            f"Types: deb\nURIs: {url}\nSuites: a\nComponents: b\nSigned-By: {KEYRING}\n",
        )
        write(folder / "etc/apt/sources.list", f"deb {url} a b\ndeb [trusted=yes] {url} a b\n")
        # A quote would end apt's value, for apt itself, too.
        quoted = url.replace('"', "%22")
        conf = write(
            folder / "own.conf",
            f'Acquire::http::Proxy "{quoted}";\nAcquire::https::Proxy "{quoted}";\n',
        )
        env = bare(folder, APT_CONFIG=str(conf))
        for variable in ("HTTPS_PROXY", "http_proxy", "ALL_PROXY", "NO_PROXY", "PIP_INDEX_URL"):
            env[variable] = url
        mirrors = detect_mirrors(env, root=folder, prefix=folder)
    site = unknown_site(mirrors)
    text = dump_site(site)
    assert parse_site(text, "x") == site
    for shown in (text, dump_json(site), summary(site), repr(mirrors)):
        # Nor a part of it that an unlucky separator cut off: each begins and ends like no other.
        assert "Zq" not in shown and "qZ" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "https://m.example.org/simple",
        "http://[2001:db8::1]:8080/debian/",
        "file:///srv/debian@home/x",
        "/srv/wheels@home",
        "./wheels",
        "m.example.org:3128",
        "copy:///srv/debian",
    ],
)
def test_what_holds_no_login_stays_as_it_is(url: str) -> None:
    assert without_login(url) == url
