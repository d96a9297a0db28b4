"""Proofs of real images under real launchers, and of what goes wrong with them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hpcenv.base.known import Known, value_of
from hpcenv.base.schema import schema
from hpcenv.cli import settings
from hpcenv.compat.model import Finding, Judged, Outlook, Severity
from hpcenv.compat.predict import predict
from hpcenv.engines.engine import Bind, Engine
from hpcenv.engines.select import usable_engine
from hpcenv.image.facts import ImageFacts
from hpcenv.image.read import read_facts
from hpcenv.image.rootfs import open_rootfs
from hpcenv.launch.model import Launch, Mend
from hpcenv.site.model import SiteProfile
from hpcenv.site.profile import dump_site, load_site
from hpcenv.validate.prove import prove
from hpcenv.validate.report import Report
from hpcenv.validate.seen import Seen

pytestmark = pytest.mark.mpi

Hpcenv = Callable[..., "subprocess.CompletedProcess[str]"]
OTHER = {"openmpi": "mpich", "mpich": "openmpi"}


@pytest.fixture(scope="session")
def images(mpi_base_openmpi: Path, mpi_base_mpich: Path) -> Mapping[str, Path]:
    return {"openmpi": mpi_base_openmpi, "mpich": mpi_base_mpich}


@pytest.fixture(scope="session")
def engine(mpi_base_openmpi: Path) -> Engine:
    """Usable, since it has built the image."""
    return usable_engine(settings.load().engines)


@pytest.fixture(scope="session")
def site(host_site: Path) -> SiteProfile:
    return load_site(str(host_site))


def facts_of(image: Path) -> ImageFacts:
    return read_facts(open_rootfs(image))


def mpirun(mpi: str, ranks: int = 2) -> Launch:
    return Launch("mpirun", "hybrid", False, 1, ranks, mpi)


def seen_by(
    site: SiteProfile,
    engine: Engine,
    image: Path,
    launch: Launch,
    mend: Mend | None = None,
    deadline: float = 60,
    env: Mapping[str, str] | None = None,
) -> Seen:
    finding = Finding("TEST", Severity.INFO, "a test", "it says so", (), "none", None, mend)
    judged = Judged(launch, Outlook.UNKNOWN, (finding,))
    ambient = {**os.environ, **(env or {})}
    (seen,) = prove(
        site, site, engine, image, facts_of(image), [judged], ambient=ambient, deadline=deadline
    )
    return seen


def rows(made: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {
        row["launch"]["mpi"]: (row["predicted"], row["seen"].get("outlook"))
        for row in made["rows"]
        if row["launch"]["model"] == "hybrid" and row["launch"]["launcher"] == "mpirun"
    }


@pytest.mark.parametrize("family", OTHER)
def test_with_both_launchers_an_image_works_with_its_own(
    family: str, images: Mapping[str, Path], host_site: Path, hpcenv: Hpcenv
) -> None:
    done = hpcenv("validate-mpi", images[family], "--site", host_site, "--json")
    made = json.loads(done.stdout)
    jsonschema.validate(made, schema(Report, "validate-mpi"))
    assert rows(made) == {family: ("works",) * 2, OTHER[family]: ("singletons",) * 2}
    assert made["status"] == 0


@pytest.mark.parametrize("family", OTHER)
def test_under_the_other_launcher_alone_singletons_are_predicted_and_seen(
    family: str,
    images: Mapping[str, Path],
    site: SiteProfile,
    hpcenv: Hpcenv,
    tmp_path: Path,
) -> None:
    other = OTHER[family]
    mpis = Known(
        tuple(mpi for mpi in value_of(site.mpis) or () if mpi.name == other), "declared", "a test"
    )
    file = tmp_path / "only.toml"
    file.write_text(dump_site(dataclasses.replace(site, mpis=mpis)))
    done = hpcenv("validate-mpi", images[family], "--site", file, "--json", status=1)
    assert rows(json.loads(done.stdout)) == {other: ("singletons", "singletons")}
    told = hpcenv("validate-mpi", images[family], "--site", file, status=1)
    assert "verdict: singletons" in told.stdout
    refused = hpcenv("run", images[family], "--site", file, "-n", "2", "--", "true", status=1)
    assert "singletons" in refused.stderr
    assert refused.stdout == ""


def test_another_site_is_judged_and_not_run(
    images: Mapping[str, Path], site: SiteProfile, hpcenv: Hpcenv, tmp_path: Path
) -> None:
    elsewhere = dataclasses.replace(
        site, name="elsewhere", libc=Known(type(value_of(site.libc)).parse("2.17"), "declared", "x")
    )
    file = tmp_path / "elsewhere.toml"
    file.write_text(dump_site(elsewhere))
    made = json.loads(
        hpcenv("validate-mpi", images["openmpi"], "--site", file, "--json", status=None).stdout
    )
    assert {row["seen"].get("unproved") for row in made["rows"]} == {"not this site"}
    assert "2.17" in made["rows"][0]["seen"]["says"]


def test_static_runs_nothing(images: Mapping[str, Path], host_site: Path, hpcenv: Hpcenv) -> None:
    done = hpcenv("validate-mpi", images["openmpi"], "--site", host_site, "--static")
    assert "not run" in done.stdout
    assert "proving" not in done.stderr


def test_more_ranks_than_processors(
    images: Mapping[str, Path], site: SiteProfile, engine: Engine
) -> None:
    seen = seen_by(site, engine, images["openmpi"], mpirun("openmpi", 5), deadline=120)
    assert seen.outlook is Outlook.WORKS, seen
    assert sorted(rank.rank for rank in seen.ranks if rank.rank is not None) == list(range(5))


class Meddled:
    """The engine, but a rank's container is preceded by a line of shell."""

    def __init__(self, engine: Engine, script: str) -> None:
        self._engine = engine
        self._script = script

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def exec_argv(
        self,
        image: Path,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
    ) -> list[str]:
        inner = self._engine.exec_argv(image, argv, binds=binds, env=env, args=args)
        return ["/bin/sh", "-c", f'{self._script}\nexec "$@"', "meddled", *inner]


def commands_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdigit() and text in line and int(entry.name) != os.getpid():
            found.append(line)
    return found


def test_a_rank_that_never_comes_is_named_by_the_deadline_and_nothing_is_left(
    images: Mapping[str, Path], site: SiteProfile, engine: Engine
) -> None:
    mark = f"1000.{os.getpid()}"
    meddled = Meddled(engine, f'[ "$OMPI_COMM_WORLD_RANK" != 1 ] || exec sleep {mark}')
    began = time.monotonic()
    seen = seen_by(site, meddled, images["openmpi"], mpirun("openmpi"), deadline=8)  # type: ignore[arg-type]
    assert time.monotonic() - began < 30
    assert seen.outlook is Outlook.MAY_HANG, seen
    host = socket.gethostname()
    assert f"rank 1 never came: started on {host}" in seen.says
    assert f"rank 0 on {host} in MPI_Init" in seen.says
    assert commands_with(mark) == []
    assert commands_with("hpcenv-proof-") == []


def test_a_rank_that_dies_before_its_container_is_named(
    images: Mapping[str, Path], site: SiteProfile, engine: Engine
) -> None:
    meddled = Meddled(engine, '[ "$PMI_RANK" != 0 ] || kill -9 $$')
    seen = seen_by(site, meddled, images["mpich"], mpirun("mpich"), deadline=20)  # type: ignore[arg-type]
    assert seen.outlook is Outlook.FAILS, seen
    assert "rank 0 never came" in seen.says


HUNG_C = r"""
int MPI_Get_library_version(char *text, int *size) {
    const char *mine = "MPICH Version:\t4.0.2";
    for (*size = 0; mine[*size]; ++*size) text[*size] = mine[*size];
    text[*size] = 0;
    return 0;
}
int MPI_Init(int *argc, char ***argv) { for (;;) { } }
"""


def test_a_rank_hung_in_c_is_seen_as_hung_in_its_step(
    images: Mapping[str, Path], site: SiteProfile, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "hung.c").write_text(HUNG_C)
    library = tmp_path / "libhung.so"
    freestanding = ["-ffreestanding", "-nostdlib", "-shared", "-fPIC"]
    subprocess.run(["gcc", *freestanding, tmp_path / "hung.c", "-o", library], check=True)
    bound = value_of(facts_of(images["mpich"]).mpis)
    assert bound
    mend = Mend(engine_args=("--bind", f"{library}:{bound[0].file}"))
    seen = seen_by(site, engine, images["mpich"], mpirun("mpich"), mend, deadline=10)
    assert str(seen) == "hangs", seen
    assert "in MPI_Init" in seen.says
    assert "bound from outside" in " ".join(seen.surprises)


def test_a_libmpi_bound_over_the_images_is_noticed_though_all_works(
    images: Mapping[str, Path], site: SiteProfile, engine: Engine, tmp_path: Path
) -> None:
    image = images["openmpi"]
    mpis = value_of(facts_of(image).mpis)
    assert mpis
    with open_rootfs(image).open(mpis[0].file) as source:
        (tmp_path / "libmpi.so").write_bytes(source.read())
    mend = Mend(engine_args=("--bind", f"{tmp_path}/libmpi.so:{mpis[0].file}"))
    seen = seen_by(site, engine, image, mpirun("openmpi"), mend)
    assert seen.outlook is Outlook.WORKS, seen
    assert "bound from outside" in " ".join(seen.surprises)


@pytest.mark.parametrize(
    ("family", "rule", "outcome"),
    [("openmpi", "SHM001", Outlook.MAY_HANG), ("mpich", "SHM002", Outlook.FAILS)],
)
def test_between_user_namespaces_all_goes_wrong_as_predicted_and_works_mended(
    family: str,
    rule: str,
    outcome: Outlook,
    images: Mapping[str, Path],
    site: SiteProfile,
    engine: Engine,
) -> None:
    image = images[family]
    launch = dataclasses.replace(mpirun(family), rootless=True)
    (judged,) = predict(site, facts_of(image), [launch]).launches
    assert judged.outlook is Outlook.WORKS
    found = {finding.rule: finding for finding in judged.findings if finding.mend}
    assert found[rule].predicts is outcome
    own = Mend(engine_args=("--userns",) if os.getuid() == 0 else ())
    bare = seen_by(site, engine, image, launch, own, deadline=12)
    assert bare.outlook is outcome, bare
    assert ("in the 24 MiB message" if family == "openmpi" else "in MPI_Init") in bare.says
    env = {name: value for f in found.values() if f.mend for name, value in f.mend.env.items()}
    mended = dataclasses.replace(own, env=env)
    assert seen_by(site, engine, image, launch, mended).outlook is Outlook.WORKS


def test_an_image_without_python_proves_nothing(
    host_site: Path, hpcenv: Hpcenv, engine: Engine, tmp_path: Path
) -> None:
    root = tmp_path / "bare"
    shell = Path("/bin/dash").resolve()
    linked = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in linked.split() if word.startswith("/")]
    for file in [str(shell), *libraries]:
        target = root / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    for folder in ("dev", "proc", "sys", "tmp", "etc", "root", "home", "bin", "var/tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "bin/sh").symlink_to(shell)
    made = json.loads(hpcenv("validate-mpi", root, "--site", host_site, "--json", status=1).stdout)
    words = {r["seen"].get("unproved") for r in made["rows"] if r["launch"]["model"] == "hybrid"}
    assert words == {"cannot prove"}
    assert "Python" in made["rows"][0]["seen"]["says"] or len(made["rows"]) > 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_proof_that_is_killed_leaves_no_rank(
    number: signal.Signals, images: Mapping[str, Path], host_site: Path, tmp_path: Path
) -> None:
    words = ["validate-mpi", str(images["openmpi"]), "--site", str(host_site), "-n", "4"]
    program = Path(os.sys.executable).with_name("hpcenv")  # type: ignore[attr-defined]
    memory = set(Path("/dev/shm").glob("*_segment.*"))
    process = subprocess.Popen(
        [program, *words],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 60
    while not list(tmp_path.glob("hpcenv-proof-*/started.*")):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(number)
    process.wait(timeout=60)
    assert process.returncode == (-9 if number is signal.SIGKILL else 130)
    end = time.monotonic() + 20
    while (left := commands_with(str(tmp_path))) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
    if number is not signal.SIGKILL:
        assert list(tmp_path.glob("hpcenv-proof-*")) == []
        assert set(Path("/dev/shm").glob("*_segment.*")) - memory == set()
