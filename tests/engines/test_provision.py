"""A real apptainer put into a folder of one's own, and the system left as it was."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from hpcenv.base.errors import Failure
from hpcenv.base.record import load_json
from hpcenv.engines import provision
from hpcenv.sources.mirrors import AptSource, Mirrors

from .helpers import ROOT, Installed, Person, install, installing

pytestmark = [pytest.mark.engine, pytest.mark.network]


def test_both_commands_run_and_say_the_recorded_version(engines: Path) -> None:
    record = load_json(provision.Record, engines / "apptainer" / provision.RECORD)
    for command in ("apptainer", "singularity"):
        words = [engines / "bin" / command, "--version"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert said == f"apptainer version {record.version.partition('-')[0]}\n"


def test_the_record_says_what_debian_packaged(engines: Path) -> None:
    record = load_json(provision.Record, engines / "apptainer" / provision.RECORD)
    versions = {package.name: package.version for package in record.packages}
    docs = engines / "apptainer/usr/share/doc"
    for name, version in versions.items():
        # The first line of its changelog; a rebuild of the same source adds "+bN".
        text = b"".join(
            gzip.decompress(file.read_bytes())
            for file in (docs / name).glob("changelog*.gz")
            if "NEWS" not in file.name and "upstream" not in str(file)
        ).decode(errors="replace")
        plain = re.escape(re.sub(r"\+b\d+$", "", version))
        assert re.search(rf"^\S+ \({plain}\) ", text, re.MULTILINE), name


def test_its_programs_run_with_their_own_c_library(engines: Path, tmp_path: Path) -> None:
    # What the dynamic loader itself says, also when a user's library path points elsewhere.
    (tmp_path / "libsqlite3.so.0").write_text("not a library")
    (tmp_path / "libc.so.6").write_text("not a library")
    prefix = (engines / "apptainer").resolve()
    programs = [prefix / "usr/bin/apptainer", *prefix.glob("usr/lib/*/apptainer/bin/starter")]
    assert len(programs) == 2
    for program in programs:
        env = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_LIBRARY_PATH": str(tmp_path)}
        told = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
        found = re.findall(r"=> (\S+)", told.stdout)
        assert found
        assert all(Path(name).resolve().is_relative_to(prefix) for name in found)


def test_the_systems_c_library_is_untouched(installed: Installed) -> None:
    assert any("libc.so.6" in name for name in installed.before)
    assert installed.after == installed.before
    verified = subprocess.run(["dpkg", "--verify", "libc6"], capture_output=True, text=True)
    assert "/lib" not in verified.stdout


def test_a_second_time_everything_is_there(open_folder: Path, engines: Path) -> None:
    stamp = (engines / "apptainer" / provision.RECORD).stat()
    done = install(open_folder / "data")
    assert "is there already" in done.stderr
    assert done.stdout == f"export PATH={engines}/bin:$PATH\n"
    assert (engines / "apptainer" / provision.RECORD).stat() == stamp
    assert sorted(entry.name for entry in engines.iterdir()) == [
        "apptainer",
        (engines / "apptainer").readlink().name,
        "bin",
    ]


def test_what_was_damaged_is_named_and_made_anew(open_folder: Path, engines: Path) -> None:
    program = (engines / "bin/apptainer").resolve()
    whole = program.read_bytes()
    program.write_bytes(whole[: len(whole) // 2])
    done = install(open_folder / "data")
    assert done.returncode == 0, done.stderr
    assert "changed since it was installed: usr/bin/apptainer;" in done.stderr
    assert program.read_bytes() == whole


def test_killed_at_any_moment_it_leaves_nothing_or_all_of_it(
    open_folder: Path, installed: Installed
) -> None:
    data = open_folder / "killed"
    folder, seen = data / "hpcenv/engines", set()
    for share in (0.3, 0.6, 0.8, 0.95):
        process = installing(data)
        with suppress(subprocess.TimeoutExpired):
            process.wait(installed.seconds * share)
        process.kill()
        process.communicate()
        program = folder / "bin/apptainer"
        if program.exists():
            subprocess.run([program, "--version"], check=True, capture_output=True)
        else:
            assert not program.is_symlink(), "a link that leads nowhere"
        seen.add(program.exists())
    assert False in seen
    assert install(data).returncode == 0
    assert not list(folder.glob(".*")), "what the killed ones left was not removed"


def test_an_ordinary_user_installs_it_without_root(
    ordinary_person: Person, open_folder: Path
) -> None:
    site = next(p for p in map(Path, _paths()) if p.name == "site-packages")
    same = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
    ).stdout.split()
    if f"python{'.'.join(same)}" != site.parent.name or not os.access(site, os.R_OK):
        pytest.skip("the dependencies are not installed for a Python that an ordinary user can run")
    folder = ordinary_person.home / "engines"
    out = ordinary_person.python(
        f"import sys; sys.path.append({str(site)!r})\n"
        "from pathlib import Path; from hpcenv.engines.provision import install\n"
        "from hpcenv.sources.configured import detect_mirrors\n"
        f"install(Path({str(folder)!r}), detect_mirrors(), lambda line: None)",
        PATH=f"{ROOT}/.venv/bin:{ordinary_person.environment['PATH']}",
    )
    assert out == ""
    assert (folder / "bin/singularity").resolve().stat().st_uid == ordinary_person.uid
    said = ordinary_person.run(folder / "bin/singularity", "--version")
    assert said.stdout.startswith("apptainer version ")


def test_without_an_archive_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    nowhere = AptSource("http://127.0.0.1:9/debian", ("stable",), ("main",), keyring)
    with pytest.raises(Failure) as raised:
        provision.install(tmp_path / "engines", Mirrors(apt=(nowhere,)), lambda line: None)
    assert raised.value.status == 3
    assert "127.0.0.1:9" in str(raised.value)
    assert raised.value.remedy
    assert list((tmp_path / "engines").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize(
    ("options", "said"), [("size=60m", "No space left"), ("size=200m,noexec", "mounted noexec")]
)
def test_a_full_or_noexec_disk_is_said(tmp_path: Path, options: str, said: str) -> None:
    mount = f"mount -t tmpfs -o {options} none {tmp_path}"
    after = f"status=$?; find {tmp_path} -name '.*'; exit $status"
    done = install(tmp_path, "unshare", "--mount", "sh", "-c", f'{mount}; "$@"; {after}', "x")
    assert done.returncode == 3
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "", "something unfinished was left"


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_stopped_install_says_so_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    done = install(tmp_path, "timeout", "--preserve-status", f"--signal={name}", "1.5")
    assert done.returncode == 130
    assert done.stderr.endswith("hpcenv: stopped; nothing half-made was left\n")
    folder = tmp_path / "hpcenv/engines"
    assert not folder.exists() or list(folder.iterdir()) == []


def test_links_are_made_only_where_nothing_else_has_the_name(tmp_path: Path) -> None:
    (tmp_path / "singularity").write_text("somebody else's")
    links = provision.link_for_path(Path("/opt/engines/bin"), tmp_path)
    assert links == [tmp_path / "apptainer"]
    assert (tmp_path / "apptainer").readlink() == Path("/opt/engines/bin/apptainer")
    assert (tmp_path / "singularity").read_text() == "somebody else's"
    assert provision.link_for_path(Path("/opt/engines/bin"), tmp_path) == links


def _paths() -> list[str]:
    import site

    return site.getsitepackages()
