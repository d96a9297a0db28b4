"""`hpcenv recipe`, `lock` and `fetch` as a person meets them: words, statuses, what is left."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sites import mpi, site

from hpcenv.base.blobs import Digest
from hpcenv.image.facts import Family
from hpcenv.lock.files import load_lock, save_lock
from hpcenv.lock.model import Artefact, Lock, MpiChoice, Release, Target
from hpcenv.recipe.load import load_recipe
from hpcenv.site.profile import dump_site
from hpcenv.sources.mirrors import AptSource, Mirrors

sys.path.insert(0, str(Path(__file__).parents[1] / "sources"))
from serving import Site, serving

HPCENV = Path(sys.executable).with_name("hpcenv")


@pytest.fixture
def web() -> Iterator[Site]:
    with serving() as served:
        yield served


@dataclasses.dataclass
class Place:
    """A working folder with a store of its own and a profile whose mirrors are here."""

    folder: Path
    env: dict[str, str]

    def run(self, *words: str, status: int, unshared: bool = False) -> tuple[str, str]:
        before = ["unshare", "--map-root-user", "--net"] if unshared else []
        done = subprocess.run(
            [*before, HPCENV, *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def place(tmp_path: Path, web: Site) -> Place:
    archive = AptSource(f"{web.url}/debian", ("bookworm",), ("main",), "")
    profile = dataclasses.replace(
        site(mpi(Family.OPENMPI, "4.1.4")),
        mirrors=Mirrors(apt=(archive,), index=f"{web.url}/simple/"),
    )
    (tmp_path / "here.toml").write_text(dump_site(profile))
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HPCENV_STORE": str(tmp_path / "store"),
        "HPCENV_SITE": "./here.toml",
    }
    return Place(tmp_path, env)


def a_lock(*artefacts: Artefact) -> Lock:
    return Lock(
        schema=1,
        recipe=load_recipe("mpi-base"),
        site="here",
        target=Target("debian:12", "bookworm", "x86_64", "3.11"),
        mpi=MpiChoice(
            Family.OPENMPI,
            site(mpi(Family.OPENMPI, "4.1.4")).mpis.value[0].library.version.value,
            "deb",
            "test",
        ),
        releases=(Release("bookworm", "2026-07-11T10:16:37Z", Digest("b" * 64)),),
        artefacts=artefacts,
        epoch=1,
    )


def deb(data: bytes, name: str = "thing") -> Artefact:
    import hashlib

    digest = Digest(hashlib.sha256(data).hexdigest())
    return Artefact("deb", "system", name, "1.0", f"pool/main/t/{name}.deb", len(data), digest)


def test_recipes_are_listed_with_what_they_are(place: Place) -> None:
    out, _ = place.run("recipe", "list", status=0)
    assert out.split()[0] == "mpi-base" and "tensorflow-horovod" in out
    told = json.loads(place.run("recipe", "list", "--json", status=0)[0])
    assert set(told) == {"mpi-base", "tensorflow-horovod"}


def test_a_new_recipe_is_written_once(place: Place) -> None:
    out, err = place.run("recipe", "new", "mine", "--from", "tensorflow-horovod", status=0)
    assert out == "mine.toml\n" and "hpcenv build ./mine.toml" in err
    assert load_recipe(str(place.folder / "mine.toml")).name == "mine"
    before = (place.folder / "mine.toml").read_text()
    place.run("recipe", "new", "mine", status=2)
    assert (place.folder / "mine.toml").read_text() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("lock", "tensorflow-horovd"), "did you mean 'tensorflow-horovod'"),
        (("lock", "./no.toml"), "no such recipe file"),
        (("lock", "mpi-base", "--site", "nowhere"), "nowhere"),
        (("lock", "mpi-base", "--upgrade", "--upgrade-package", "x"), "--upgrade-package"),
        (("fetch", "no.lock.json"), "no.lock.json"),
    ],
)
def test_bad_input_is_told_with_status_2(place: Place, words: tuple[str, ...], says: str) -> None:
    assert says in place.run(*words, status=2)[1]


def test_a_site_without_an_mpi_is_refused_with_what_to_type(place: Place) -> None:
    (place.folder / "bare.toml").write_text(dump_site(site(name="bare")))
    err = place.run("lock", "mpi-base", "--site", "./bare.toml", status=1)[1]
    assert "apt-get install openmpi-bin" in err
    assert not list(place.folder.glob("*.lock.json"))


def test_no_network_ends_a_lock_in_seconds_and_leaves_the_old_one(place: Place) -> None:
    old = dataclasses.replace(a_lock(), site="elsewhere")
    file = place.folder / "mpi-base.here.lock.json"
    save_lock(old, file)
    began = time.monotonic()
    err = place.run("lock", "mpi-base", status=3, unshared=True)[1]
    assert time.monotonic() - began < 30
    assert "it is for site elsewhere, not here" in err and "127.0.0.1" in err
    assert load_lock(file) == old


def test_fetch_brings_what_is_missing_and_then_nothing(place: Place, web: Site) -> None:
    data = b"a package" * 1000
    web.files["/debian/pool/main/t/thing.deb"] = data
    save_lock(a_lock(deb(data)), place.folder / "x.lock.json")
    out, err = place.run("fetch", "x.lock.json", status=0)
    assert "1 of them brought now" in out and "1/1 files" in err
    out, err = place.run("fetch", "x.lock.json", status=0, unshared=True)
    assert "0 of them brought now" in out and err == ""


def test_a_superseded_package_is_named_with_what_to_do(place: Place) -> None:
    save_lock(a_lock(deb(b"gone")), place.folder / "x.lock.json")
    err = place.run("fetch", "x.lock.json", status=3)[1]
    assert "thing 1.0" in err and "127.0.0.1: 404" in err and "--upgrade" in err


def test_another_content_under_the_same_name_is_refused(place: Place, web: Site) -> None:
    web.files["/debian/pool/main/t/thing.deb"] = b"evil"
    save_lock(a_lock(deb(b"good")), place.folder / "x.lock.json")
    assert "thing 1.0" in place.run("fetch", "x.lock.json", status=1)[1]
    assert not [p for p in (place.folder / "store").rglob("*") if p.is_file()]


def test_a_full_store_is_named_and_the_next_fetch_goes_on(place: Place, web: Site) -> None:
    data = os.urandom(2_000_000)
    web.files["/debian/pool/main/t/thing.deb"] = data
    save_lock(a_lock(deb(data)), place.folder / "x.lock.json")
    # No file may grow beyond 1 MB: a write fails as it does on a full disk.
    done = subprocess.run(
        ["prlimit", "--fsize=1000000", HPCENV, "fetch", "x.lock.json"],
        cwd=place.folder,
        env=place.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "store/blobs: cannot write to the store" in done.stderr
    assert "HPCENV_STORE" in done.stderr
    place.run("fetch", "x.lock.json", status=0)


def test_interrupted_it_says_so_and_the_next_one_goes_on(place: Place, web: Site) -> None:
    data = os.urandom(2_000_000)
    web.files["/debian/pool/main/t/thing.deb"] = data
    save_lock(a_lock(deb(data)), place.folder / "x.lock.json")
    half, go_on = threading.Event(), threading.Event()

    def stall(path: str, request: int) -> None:
        if request == 1:
            half.set()
            go_on.wait(60)

    web.break_after = lambda path, request: 1_000_000 if request == 1 else None
    web.after_body = stall
    process = subprocess.Popen(
        [HPCENV, "fetch", "x.lock.json"],
        cwd=place.folder,
        env=place.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert half.wait(60)
    incoming = place.folder / "store/blobs/.incoming"
    while process.poll() is None and not any(
        f.stat().st_size > 700_000 for f in incoming.iterdir()
    ):
        pass
    process.send_signal(signal.SIGINT)
    # What it waits for is a server that has gone silent; that must not hold it.
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    go_on.set()
    assert process.returncode == 130 and "stopped" in err and "Traceback" not in err
    assert time.monotonic() - began < 15
    place.run("fetch", "x.lock.json", status=0)
    found = [p for p in (place.folder / "store/blobs").rglob("*") if p.is_file()]
    assert [p.read_bytes() for p in found] == [data]
