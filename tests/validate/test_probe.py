"""The probe by itself, without any container: against C, against launchers, against a rank hung."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcenv.validate.prove import probe_file

FAMILIES = ["openmpi", "mpich"]
LIBRARY = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}


def test_it_is_readable_by_the_oldest_python_it_promises() -> None:
    ast.parse(probe_file().read_text(), feature_version=(3, 6))


def test_it_needs_the_standard_library_alone() -> None:
    tree = ast.parse(probe_file().read_text())
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


HANDLES_C = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static void show(const char *name, const void *handle, size_t size) {
    unsigned long value = 0;
    Dl_info info;
    memcpy(&value, handle, size);
    if (size == sizeof(void *) && dladdr((void *)value, &info) && info.dli_sname) {
        printf("%s %s\n", name, info.dli_sname);
    } else {
        printf("%s %lu\n", name, value);
    }
}

#define SHOW(name, type, handle) { type h = handle; show(name, &h, sizeof h); }

int main(void) {
    SHOW("comm", MPI_Comm, MPI_COMM_WORLD)
    SHOW("byte", MPI_Datatype, MPI_BYTE)
    SHOW("int64", MPI_Datatype, MPI_INT64_T)
    SHOW("double", MPI_Datatype, MPI_DOUBLE)
    SHOW("sum", MPI_Op, MPI_SUM)
    printf("ignore %lu\n", (unsigned long)MPI_STATUS_IGNORE);
    return 0;
}
"""

HANDLES_PYTHON = """
import ctypes, importlib.util, sys
spec = importlib.util.spec_from_file_location("mpi_probe", sys.argv[1])
probe = importlib.util.module_from_spec(spec)
spec.loader.exec_module(probe)

class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]

world = probe.World(ctypes.CDLL(sys.argv[2]))
for name in ("comm", "byte", "int64", "double", "sum", "ignore"):
    handle, info = getattr(world, name), Info()
    pointer = isinstance(handle, ctypes.c_void_p) and name != "ignore"
    if pointer and ctypes.CDLL(None).dladdr(handle, ctypes.byref(info)) and info.name:
        print(name, info.name.decode())
    else:
        print(name, handle.value or 0)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("family", FAMILIES)
def test_its_handles_are_those_of_the_header(family: str, tmp_path: Path) -> None:
    compiler = shutil.which(f"mpicc.{family}")
    assert compiler, "install libopenmpi-dev and libmpich-dev"
    source = tmp_path / "handles.c"
    source.write_text(HANDLES_C)
    # Non-PIE code would see the library's objects at a copy within the program itself.
    subprocess.run([compiler, "-fPIC", source, "-o", tmp_path / "handles", "-ldl"], check=True)
    of_c = subprocess.run([tmp_path / "handles"], capture_output=True, text=True, check=True)
    script = [sys.executable, "-c", HANDLES_PYTHON, probe_file(), LIBRARY[family]]
    ours = subprocess.run(script, capture_output=True, text=True, check=True)
    assert ours.stdout.split() == of_c.stdout.split()
    assert len(ours.stdout.splitlines()) == 6


def mpirun(
    family: str, folder: Path, *options: str, ranks: int = 2, deadline: float = 60
) -> tuple[int, list[dict[str, Any]]]:
    launcher = shutil.which(f"mpirun.{family}")
    assert launcher, "install openmpi-bin and mpich"
    words = ["--map-by", ":OVERSUBSCRIBE"] if family == "openmpi" else []
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    probe = [sys.executable, probe_file(), folder, "--deadline", str(deadline), *options]
    done = subprocess.run(
        [launcher, "-n", str(ranks), *words, *probe],
        env=env,
        capture_output=True,
        text=True,
        timeout=deadline + 60,
    )
    records = [json.loads(file.read_text()) for file in folder.glob("rank.*.json")]
    return done.returncode, sorted(records, key=lambda r: r["launcher_rank"])


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_proves_a_launcher_with_its_own_library(family: str, ranks: int, tmp_path: Path) -> None:
    status, records = mpirun(family, tmp_path, "--library", LIBRARY[family], ranks=ranks)
    assert status == 0
    assert [record["rank"] for record in records] == list(range(ranks))
    for record in records:
        assert record["step"] == "done"
        assert record["size"] == ranks
        assert record["family"] == family
        assert all(record[check] for check in ("ring", "integers", "floats", "large"))
        # The loader's own answer to the same question.
        cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
        line = next(line for line in cache.splitlines() if LIBRARY[family] + " " in line)
        assert record["library"] == str(Path(line.split("=>")[1].strip()).resolve())


@pytest.mark.mpi
@pytest.mark.parametrize(("launcher", "library"), [FAMILIES, FAMILIES[::-1]])
def test_it_sees_singletons_where_launcher_and_library_differ(
    launcher: str, library: str, tmp_path: Path
) -> None:
    status, records = mpirun(launcher, tmp_path, "--library", LIBRARY[library])
    assert status == 0, "this is the point: nobody complains"
    assert [record["launcher_rank"] for record in records] == [0, 1]
    assert [(record["rank"], record["size"]) for record in records] == [(0, 1), (0, 1)]


HUNG_C = r"""
#include <stdlib.h>
#include <string.h>
int MPI_Get_library_version(char *text, int *size) {
    strcpy(text, "MPICH Version:\t4.0.2");
    *size = (int)strlen(text);
    return 0;
}
int MPI_Init(int *argc, char ***argv) { for (;;) { } }
"""


@pytest.mark.mpi
def test_a_rank_hung_in_c_is_ended_by_its_own_watchdog(tmp_path: Path) -> None:
    (tmp_path / "hung.c").write_text(HUNG_C)
    library = tmp_path / "libhung.so"
    subprocess.run(
        ["gcc", "-O0", "-shared", "-fPIC", tmp_path / "hung.c", "-o", library], check=True
    )
    status, records = mpirun("mpich", tmp_path, "--library", str(library), deadline=2)
    assert status != 0
    assert [record["step"] for record in records] == ["init", "init"]
    traces = [(tmp_path / record["trace"]).read_text() for record in records]
    assert any("Timeout" in trace for trace in traces)


@pytest.mark.mpi
def test_a_rank_without_any_libmpi_says_so(tmp_path: Path) -> None:
    status, records = mpirun("mpich", tmp_path, "--library", "libnone.so.1")
    assert status != 0
    assert "libnone.so.1" in records[0]["stopped"]
    assert not records[0]["unprovable"]
