"""What follows from predictions and outcomes, put together: exit status, verdict, text, record."""

from __future__ import annotations

import json

import jsonschema
import pytest

from hpcenv.base.known import Known, Unknown
from hpcenv.base.record import dump_json, parse_json
from hpcenv.base.schema import schema
from hpcenv.compat.model import Finding, Judged, Outlook, Severity
from hpcenv.image.facts import ImageFacts
from hpcenv.launch.model import Launch, Mend
from hpcenv.site.model import SiteProfile
from hpcenv.sources.mirrors import Mirrors
from hpcenv.validate.report import Report, Row, conclude, render, report
from hpcenv.validate.seen import Seen, unseen

NOT_KNOWN = Unknown("not looked for", "nothing")
OPENMPI = Launch("mpirun", "hybrid", False, 1, 2, "openmpi")
MPICH = Launch("mpirun", "hybrid", False, 1, 2, "mpich")
BIND = Launch("mpirun", "bind", False, 1, 2, "openmpi")
WORKS, ALONE, FAILS = Outlook.WORKS, Outlook.SINGLETONS, Outlook.FAILS
ELSEWHERE = unseen("not this site", "libc 2.17, here 2.36")
NO_PYTHON = unseen("cannot prove", "no Python")
QUEUED = unseen("not proved", "outside an allocation")


def seen(outlook: Outlook, *surprises: str) -> Seen:
    return Seen(outlook, "as it was", surprises=surprises, seconds=1.25)


def row(launch: Launch, predicted: Outlook, outcome: Seen) -> Row:
    return Row(launch, predicted, (), outcome)


@pytest.mark.parametrize(
    ("rows", "status", "verdict"),
    [
        ([row(OPENMPI, WORKS, seen(WORKS)), row(MPICH, ALONE, seen(ALONE))], 0, "works, with"),
        ([row(MPICH, ALONE, seen(ALONE))], 1, "singletons"),
        ([row(OPENMPI, WORKS, seen(WORKS)), row(MPICH, ALONE, seen(WORKS))], 1, "differ"),
        ([row(OPENMPI, WORKS, seen(ALONE))], 1, "differ"),
        ([row(OPENMPI, WORKS, seen(WORKS, "bound from outside"))], 1, "bound from outside"),
        ([row(OPENMPI, Outlook.UNKNOWN, seen(WORKS))], 0, "works, with"),
        ([row(OPENMPI, Outlook.UNKNOWN, seen(FAILS))], 1, "fails at start"),
        ([row(OPENMPI, Outlook.UNKNOWN, QUEUED)], 1, "unknown"),
        ([row(OPENMPI, WORKS, ELSEWHERE)], 0, "works, with hybrid mpirun (openmpi); predicted"),
        ([row(OPENMPI, WORKS, NO_PYTHON)], 1, "cannot be proved: no Python"),
        ([row(OPENMPI, FAILS, seen(FAILS)), row(MPICH, WORKS, QUEUED)], 0, "works, with"),
        ([row(OPENMPI, FAILS, seen(FAILS)), row(BIND, Outlook.NEVER_RUN, QUEUED)], 1, "fails"),
        ([row(OPENMPI, Outlook.MAY_HANG, seen(Outlook.MAY_HANG))], 1, "may hang"),
        ([], 1, "no launch"),
    ],
)
def test_the_exit_status_and_the_verdict(rows: list[Row], status: int, verdict: str) -> None:
    says, _, found = conclude(rows)
    assert found == status
    assert verdict in says


def site() -> SiteProfile:
    unknown = dict.fromkeys(
        ("cpu_features", "cpus", "os", "kernel", "libc", "mpis", "slurm", "driver", "gpus"),
        NOT_KNOWN,
    )
    return SiteProfile(
        schema=1,
        name="example",
        arch=Known("x86_64", "declared", "a test"),
        fabrics=NOT_KNOWN,
        engines=NOT_KNOWN,
        privileged=NOT_KNOWN,
        mirrors=Mirrors(),
        **unknown,  # type: ignore[arg-type]
    )


def facts() -> ImageFacts:
    fields = ("os", "libc", "python", "mpis", "tensorflow", "horovod", "needs")
    return ImageFacts(
        schema=1,
        digest=None,
        arch=Known("x86_64", "read", "/bin/sh"),
        **dict.fromkeys(fields, NOT_KNOWN),  # type: ignore[arg-type]
    )


def finding() -> Finding:
    return Finding(
        "PMI002",
        Severity.ERROR,
        "PMI",
        "this Open MPI was built without PMI-2",
        (Known("the image's PMI: pmix", "read", "libmpi.so"),),
        "use --mpi=pmix",
        FAILS,
        Mend(use=OPENMPI),
    )


def example() -> Report:
    return report(
        site(),
        "tensorflow-horovod:2026.12",
        facts(),
        [Judged(OPENMPI, WORKS, ()), Judged(MPICH, FAILS, (finding(),))],
        [seen(WORKS), ELSEWHERE],
        nodes=2,
        ranks=4,
        options="--site example",
        hpcenv="1.0",
    )


def test_the_text_has_both_beside_each_other_and_ends_with_what_to_type() -> None:
    lines = render(example()).splitlines()
    assert lines[0].startswith("site   example: x86_64")
    assert lines[1].startswith("image  x86_64")
    heads = next(line for line in lines if line.startswith("launch"))
    works = next(line for line in lines if line.startswith("hybrid  mpirun (openmpi)"))
    fails = next(line for line in lines if line.startswith("hybrid  mpirun (mpich)"))
    predicted, outcome = heads.index("predicted"), heads.index("seen")
    assert works[predicted:].startswith("works") and works[outcome:] == "works"
    assert fails[predicted:].startswith("fails at start") and fails[outcome:] == "not this site"
    assert any(line.startswith("PMI002  error  hybrid mpirun (mpich): ") for line in lines)
    assert "    → use --mpi=pmix" in lines
    assert lines[-2].startswith("verdict: works")
    run = "hpcenv run tensorflow-horovod:2026.12 --site example -N 2 -n 4 -- COMMAND …"
    assert lines[-1].strip() == run


def test_the_record_keeps_its_schema_and_comes_back_whole() -> None:
    text = dump_json(example())
    jsonschema.validate(json.loads(text), schema(Report, "validate-mpi"))
    assert parse_json(Report, text, "report.json") == example()
