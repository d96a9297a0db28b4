"""Logins of archives: the manual page apt_auth.conf(5) says what is sent where."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcenv.sources.logins import apt_login

# The manual page's own examples, and a second file.
AUTH = """
# comment
machine example.org login apt password debian
machine example.org/deb login deb password s3cret
machine http://plain.example.org:8080/debian/
login one
password two
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "auth.conf").write_text(AUTH)
    (tmp_path / "auth.conf.d").mkdir()
    (tmp_path / "auth.conf.d/site.conf").write_text("machine more.example.org login me password x")
    (tmp_path / "auth.conf.d/not.ours").write_text("machine no.example.org login me password x")
    return tmp_path


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("https://example.org/x", ("apt", "debian")),
        ("http://example.org/x", None),
        ("https://example.com/x", None),
        ("http://plain.example.org:8080/debian/pool/x", ("one", "two")),
        ("http://plain.example.org:8080/other", None),
        ("https://more.example.org/", ("me", "x")),
        ("https://no.example.org/", None),
    ],
)
def test_a_login_goes_where_apt_sends_it(
    url: str, login: tuple[str, str] | None, folder: Path
) -> None:
    assert apt_login(url, folder) == login


def test_no_file_is_no_login(tmp_path: Path) -> None:
    assert apt_login("https://example.org/", tmp_path) is None
