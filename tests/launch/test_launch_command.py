"""The command of a launch: pure, so each word is compared."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.errors import Refused
from hpcenv.base.known import Known, Unknown
from hpcenv.base.version import Version
from hpcenv.engines.engine import Bind, Complaint
from hpcenv.image.facts import Family, Mpi
from hpcenv.launch.command import Command, clean, command, lacks, shell_line
from hpcenv.launch.model import Launch, Mend
from hpcenv.site.model import SiteMpi, SiteProfile
from hpcenv.sources.mirrors import Mirrors

NOT_KNOWN = Unknown("not looked for", "nothing")
IMAGE = Path("X.sif")
TRAIN = ("hpcenv-train", "run", "digits")


class Plain:
    """An engine that says what it is asked."""

    name = "plain"

    def check(self) -> Sequence[Complaint]:
        return ()

    def check_run(self, work: Path) -> Sequence[Complaint]:
        return ()

    def run(self, *words: object, **more: object) -> None:
        raise AssertionError("a pure function runs nothing")

    def exec_argv(
        self,
        image: Path,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
    ) -> list[str]:
        return ["singularity", "exec", *args, str(image), *argv]


def mpi(name: str, family: Family) -> SiteMpi:
    library = Mpi(
        family=Known(family, "declared", "a test"),
        version=Known(Version.parse("4.1.4"), "declared", "a test"),
        soname="libmpi.so",
        file=f"/opt/{name}/lib/libmpi.so",
        abi=NOT_KNOWN,
        pmi=NOT_KNOWN,
        pmix=None,
        transports=NOT_KNOWN,
    )
    launcher = Known(f"/opt/{name}/bin/mpirun", "declared", "a test")
    return SiteMpi(name, f"/opt/{name}", launcher, library, NOT_KNOWN)


def site(cpus: int | None = 2) -> SiteProfile:
    known = Known(cpus, "declared", "a test") if cpus is not None else NOT_KNOWN
    families = (("openmpi", Family.OPENMPI), ("mpich", Family.MPICH), ("intel", Family.INTEL))
    return SiteProfile(
        schema=1,
        name="here",
        arch=NOT_KNOWN,
        cpu_features=NOT_KNOWN,
        cpus=known,  # type: ignore[arg-type]
        os=NOT_KNOWN,
        kernel=NOT_KNOWN,
        libc=NOT_KNOWN,
        mpis=Known(tuple(mpi(*each) for each in families), "declared", "a test"),
        slurm=NOT_KNOWN,
        driver=NOT_KNOWN,
        gpus=NOT_KNOWN,
        fabrics=NOT_KNOWN,
        engines=NOT_KNOWN,
        privileged=NOT_KNOWN,
        mirrors=Mirrors(),
    )


def mpirun(name: str, nodes: int = 1, each: int = 2) -> Launch:
    return Launch("mpirun", "hybrid", False, nodes, each, name)


def made(
    launch: Launch,
    *mends: Mend,
    cpus: int | None = 2,
    ambient: Mapping[str, str] | None = None,
    uid: int = 1000,
    env: Mapping[str, str] | None = None,
) -> Command:
    return command(
        site(cpus), Plain(), IMAGE, launch, mends, TRAIN, ambient=ambient or {}, uid=uid, env=env
    )


def test_the_simple_case_is_the_line_of_the_readme() -> None:
    path = {"mpirun": "/opt/openmpi/bin/mpirun", "singularity": "/usr/bin/singularity"}
    line = shell_line(made(mpirun("openmpi")), {}, path.get)
    assert line == "mpirun -n 2 singularity exec X.sif hpcenv-train run digits"


def test_root_is_let_by_open_mpis_own_variables_alone() -> None:
    path = {"mpirun": "/opt/openmpi/bin/mpirun"}
    whole = made(mpirun("openmpi"), uid=0)
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert allowed.items() <= whole.env.items()
    line = shell_line(whole, {}, path.get)
    assert line.startswith("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n 2 ")
    assert shell_line(whole, allowed, path.get).startswith("mpirun -n 2 ")
    assert not any("ROOT" in name for name in made(mpirun("mpich"), uid=0).env)


def test_a_launcher_that_path_does_not_lead_to_is_named_whole() -> None:
    path = {"mpirun": "/opt/openmpi/bin/mpirun"}
    line = shell_line(made(mpirun("mpich")), {}, path.get)
    assert line.startswith("/opt/mpich/bin/mpirun -n 2 ")


@pytest.mark.parametrize(
    ("launch", "cpus", "words"),
    [
        (mpirun("openmpi", each=2), 2, "-n 2"),
        (mpirun("openmpi", each=3), 2, "-n 3 --map-by :OVERSUBSCRIBE"),
        (mpirun("openmpi", each=2), 64, "-n 2 --bind-to none"),
        (mpirun("openmpi", each=2), None, "-n 2 --map-by :OVERSUBSCRIBE --bind-to none"),
        (mpirun("openmpi", 4, 2), 2, "-n 8 --map-by ppr:2:node"),
        (mpirun("openmpi", 4, 3), 2, "-n 12 --map-by ppr:3:node:OVERSUBSCRIBE"),
        (mpirun("mpich", each=5), 2, "-n 5"),
        (mpirun("mpich", 4, 2), 2, "-n 8 -ppn 2"),
        (mpirun("intel", 4, 2), 2, "-n 8 -ppn 2"),
    ],
)
def test_the_launchers_own_words(launch: Launch, cpus: int | None, words: str) -> None:
    assert list(made(launch, cpus=cpus).launcher[1:]) == words.split()


def test_hydra_starts_the_ranks_of_its_own_node_itself_within_an_allocation() -> None:
    within = {"SLURM_JOB_ID": "7"}
    assert made(mpirun("mpich"), ambient=within).launcher[-2:] == ("-launcher", "fork")
    assert "-launcher" not in made(mpirun("mpich", 2), ambient=within).launcher


def test_srun_is_told_nodes_ranks_and_interface() -> None:
    launch = Launch("srun", "hybrid", False, 2, 4, mpi_type="pmix_v4")
    words = "srun -N 2 -n 8 --ntasks-per-node=4 --mpi=pmix_v4"
    assert list(made(launch).launcher) == words.split()


@pytest.mark.parametrize(
    ("name", "words"),
    [("openmpi", ["-x", "A=x,y z"]), ("mpich", ["-genv", "A", "x,y z"])],
)
def test_mends_reach_the_ranks(name: str, words: list[str]) -> None:
    mend = Mend(env={"A": "x,y z"}, launcher_args=("--more",), engine_args=("--sharens",))
    whole = made(mpirun(name), mend)
    assert list(whole.launcher[-3 if name == "openmpi" else -4 :]) == ["--more", *words]
    assert list(whole.inner) == ["singularity", "exec", "--sharens", "X.sif", *TRAIN]


def test_srun_hands_mends_on_by_its_own_environment() -> None:
    launch = Launch("srun", "hybrid", False, 2, 1, mpi_type="pmix")
    assert made(launch, Mend(env={"A": "x,y"})).env["A"] == "x,y"


def test_what_the_user_names_wins_over_a_mend() -> None:
    whole = made(mpirun("openmpi"), Mend(env={"A": "mend"}), env={"A": "user"})
    assert "A=user" in whole.launcher and "A=mend" not in whole.launcher


LEAKS = {
    "PYTHONPATH": "/home/me/lib",
    "PYTHONHOME": "/usr",
    "LD_PRELOAD": "libhook.so",
    "VIRTUAL_ENV": "/home/me/venv",
    "AWS_SECRET_ACCESS_KEY": "s",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_MCA_orte_hnp_uri": "tcp://",
    "OMPI_MCA_ess": "^singleton",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "x",
    "PMI_RANK": "3",
    "PMI_FD": "7",
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
}
NEEDED = {
    "HOME": "/home/me",
    "PATH": "/usr/bin",
    "LD_LIBRARY_PATH": "/opt/openmpi/lib",
    "TMPDIR": "/scratch",
    "SLURM_JOB_ID": "7",
    "SLURM_CONF": "/etc/slurm.conf",
    "OMPI_MCA_btl": "self,tcp",
    "PMIX_MCA_gds": "hash",
    "UCX_TLS": "rc",
    "APPTAINER_CACHEDIR": "/scratch",
    "LC_ALL": "C.UTF-8",
}


def test_only_what_a_job_needs_passes() -> None:
    assert clean({**LEAKS, **NEEDED}) == NEEDED


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z_]{0,12}", fullmatch=True), st.text(max_size=5)))
def test_cleaning_invents_nothing_and_cleans_once(ambient: dict[str, str]) -> None:
    once = clean(ambient)
    assert once.items() <= ambient.items()
    assert clean(once) == once


def test_the_printed_line_takes_away_what_would_mislead_the_images_python() -> None:
    ambient = {"PYTHONPATH": "/home/me/lib", "EDITOR": "vi"}
    line = shell_line(made(mpirun("mpich"), ambient=ambient), ambient, lambda name: None)
    assert line.startswith("env -u PYTHONPATH /opt/mpich/bin/mpirun ")
    assert "EDITOR" not in line


words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)


@given(st.lists(words, max_size=5), words)
def test_the_printed_line_says_the_same_words_to_a_shell(argv: list[str], value: str) -> None:
    """A real shell reads it: the launcher is replaced by one that prints what it was given."""
    whole = command(
        site(), Plain(), IMAGE, mpirun("mpich"), [Mend(env={"A": value})], ["x", *argv],
        ambient={}, uid=1000,
    )  # fmt: skip
    line = shell_line(whole, {}, lambda name: None)
    printing = line.replace("/opt/mpich/bin/mpirun", "printf '%s\\0'", 1)
    done = subprocess.run(["/bin/sh", "-c", printing], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == list(whole.argv[1:])
    assert shlex.split(line)[1:] == list(whole.argv[1:])


def test_what_cannot_be_composed_is_refused() -> None:
    with pytest.raises(Refused, match="no MPI called 'none'"):
        made(mpirun("none"))
    with pytest.raises(Refused, match="hybrid"):
        made(Launch("mpirun", "bind", False, 1, 2, "openmpi"))


def test_mpirun_over_nodes_needs_an_allocation() -> None:
    assert lacks(mpirun("openmpi", 2), {}) is not None
    assert lacks(mpirun("openmpi", 2), {"SLURM_JOB_ID": "1"}) is None
    assert lacks(mpirun("openmpi", 1), {}) is None
    assert lacks(Launch("srun", "hybrid", False, 2, 1, mpi_type="pmix"), {}) is None
