"""Indexes and folders of every kind that pip can be set to; pip itself is the judge."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Site, serving

from hpcenv.base.blobs import Digest
from hpcenv.base.errors import Outside
from hpcenv.sources.index import locate, normal, offers, size_at
from hpcenv.sources.mirrors import Mirrors


@pytest.fixture
def web() -> Iterator[Site]:
    with serving() as site:
        yield site


def wheel(folder: Path, version: str = "1.0", extra: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"My_Pkg-{version}-py3-none-any.whl"
    info = f"my_pkg-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("my_pkg.py", f"{extra}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: my-pkg\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return file


def digest(file: Path) -> Digest:
    return Digest(hashlib.sha256(file.read_bytes()).hexdigest())


def html(file: Path, base: str, with_hash: bool = True) -> bytes:
    mark = f"#sha256={digest(file)}" if with_hash else ""
    return f'<!DOCTYPE html><a href="{base}{file.name}{mark}">{file.name}</a>'.encode()


def mirrors_of(kind: str, file: Path, web: Site, tmp_path: Path) -> Mirrors:
    """This wheel behind one kind of configuration."""
    if kind == "html index":
        web.files = {
            "/simple/my-pkg/": html(file, "../../files/"),
            f"/files/{file.name}": file.read_bytes(),
        }
        return Mirrors(index=f"{web.url}/simple/")
    if kind == "json index":
        page = {
            "meta": {"api-version": "1.1"},
            "name": "my-pkg",
            "versions": ["1.0"],
            "files": [
                {
                    "filename": file.name,
                    "url": f"../../files/{file.name}",
                    "hashes": {"sha256": digest(file)},
                    "size": file.stat().st_size,
                }
            ],
        }
        web.files = {
            "/simple/my-pkg/": json.dumps(page).encode(),
            f"/files/{file.name}": file.read_bytes(),
        }
        web.types = {"/simple/my-pkg/": "application/vnd.pypi.simple.v1+json"}
        return Mirrors(index=f"{web.url}/simple/")
    if kind == "index in a folder":
        page = tmp_path / "index/my-pkg/index.html"
        page.parent.mkdir(parents=True)
        page.write_bytes(html(file, f"../../{file.parent.name}/"))
        return Mirrors(index=(tmp_path / "index").as_uri())
    if kind == "links page":
        web.files = {
            "/all.html": html(file, "/files/", with_hash=False),
            f"/files/{file.name}": file.read_bytes(),
        }
        return Mirrors(no_index=True, find_links=(f"{web.url}/all.html",))
    return Mirrors(no_index=True, find_links=(str(file.parent),))


KINDS = ["html index", "json index", "index in a folder", "links page", "links folder"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_found_where_pip_finds_it(kind: str, web: Site, tmp_path: Path) -> None:
    file = wheel(tmp_path / "wheels")
    mirrors = mirrors_of(kind, file, web, tmp_path)
    (url,) = locate({file.name: digest(file)}, mirrors)[file.name]
    options = ["--no-index"] if mirrors.no_index else ["--index-url", mirrors.index or ""]
    options += [f"--find-links={links}" for links in mirrors.find_links]
    report = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--isolated", "install", "--dry-run"),
            *("--ignore-installed", "--quiet", "--report", "-", *options, "my-pkg"),
        ],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
        check=True,
    )
    assert json.loads(report.stdout)["install"][0]["download_info"]["url"] == url


@pytest.mark.parametrize("kind", KINDS)
def test_size_is_known_or_can_be_asked_for(kind: str, web: Site, tmp_path: Path) -> None:
    file = wheel(tmp_path / "wheels")
    mirrors = mirrors_of(kind, file, web, tmp_path)
    (offer,) = offers(["my-pkg"], mirrors)["my-pkg"]
    assert (offer.size or size_at(offer.url, mirrors)) == file.stat().st_size


def test_the_right_content_among_several_of_that_name(web: Site, tmp_path: Path) -> None:
    ours, other = wheel(tmp_path / "a"), wheel(tmp_path / "b", extra="# rebuilt")
    assert digest(ours) != digest(other)
    web.files = {"/simple/my-pkg/": html(other, "/b/"), "/more/my-pkg/": html(ours, "/a/")}
    mirrors = Mirrors(index=f"{web.url}/simple/", extra_indexes=(f"{web.url}/more/",))
    assert locate({ours.name: digest(ours)}, mirrors)[ours.name] == (f"{web.url}/a/{ours.name}",)
    assert locate({ours.name: Digest("0" * 64)}, mirrors)[ours.name] == ()


def test_an_index_that_has_no_such_project_is_no_failure(web: Site, tmp_path: Path) -> None:
    file = wheel(tmp_path / "wheels")
    mirrors = Mirrors(index=f"{web.url}/simple/", find_links=(str(file.parent),))
    assert locate({file.name: digest(file)}, mirrors)[file.name] == (file.as_uri(),)


def test_an_index_that_fails_is_said_even_if_another_would_do(tmp_path: Path) -> None:
    file = wheel(tmp_path / "wheels")
    mirrors = Mirrors(index="http://nowhere.invalid/simple", find_links=(str(file.parent),))
    with pytest.raises(Outside, match=r"nowhere\.invalid"):
        locate({file.name: digest(file)}, mirrors)


@pytest.mark.parametrize(
    ("name", "index_name"), [("My_Pkg", "my-pkg"), ("a.b--c", "a-b-c"), ("PyYAML", "pyyaml")]
)
def test_names_are_those_of_pep_503(name: str, index_name: str) -> None:
    assert normal(name) == index_name
