"""Prediction and outcome side by side, and what follows from them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hpcenv.base.known import Fact, Unknown, value_of
from hpcenv.compat.model import Finding, Judged, Outlook, Severity
from hpcenv.image.facts import ImageFacts, Mpi
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile
from hpcenv.validate.seen import Seen, agree

_PROMISES = frozenset({Outlook.WORKS, Outlook.SLOW, Outlook.NEVER_RUN})


@dataclass(frozen=True)
class Row:
    """One launch: what was predicted, why, and what was seen."""

    launch: Launch
    predicted: Outlook
    findings: tuple[Finding, ...]
    seen: Seen

    @property
    def differs(self) -> bool:
        """Whether it was seen, and was not as predicted or not as it should be."""
        outlook = self.seen.outlook
        return outlook is not None and (
            not agree(self.predicted, outlook) or bool(self.seen.surprises)
        )


@dataclass(frozen=True)
class Report:
    """What `hpcenv validate-mpi` found; the versioned record behind ``--json``.

    Attributes
    ----------
    site, image : str
        The two lines that describe them.
    name : str
        The image, as it was asked for.
    rows : tuple of Row
        Best prediction first.
    verdict : str
        One sentence.
    next : str
        What to type next.
    status : int
        The command's exit status: 0 where a launch works, or is promised to where it could not be
        tried; 1 where prediction and outcome differ, nothing works, or nothing could be proved
        though it was tried.
    """

    schema: Literal[1]
    hpcenv: str
    name: str
    digest: str | None
    site: str
    image: str
    nodes: int
    ranks: int
    rows: tuple[Row, ...]
    verdict: str
    next: str
    status: int


def report(
    site: SiteProfile,
    name: str,
    facts: ImageFacts,
    judged: Sequence[Judged],
    seen: Sequence[Seen],
    *,
    nodes: int,
    ranks: int,
    options: str,
    hpcenv: str,
) -> Report:
    """Put predictions and outcomes together.

    Parameters
    ----------
    options : str
        What `hpcenv run` must be given, besides the ranks, to look at the same site and launches.
    hpcenv : str
        The version that says so.
    """
    rows = tuple(
        Row(item.launch, item.outlook, item.findings, outcome)
        for item, outcome in zip(judged, seen, strict=True)
    )
    verdict, good, status = conclude(rows)
    return Report(
        schema=1,
        hpcenv=hpcenv,
        name=name,
        digest=facts.digest,
        site=describe_site(site),
        image=describe_image(facts),
        nodes=nodes,
        ranks=ranks,
        rows=rows,
        verdict=verdict,
        next=_next(rows, good, name, options, nodes, ranks),
        status=status,
    )


def conclude(rows: Sequence[Row]) -> tuple[str, Row | None, int]:
    """Return the verdict, the launch to take if there is one, and the exit status."""
    differing = [row for row in rows if row.differs]
    if differing:
        row = differing[0]
        what = row.seen.surprises[0] if row.seen.surprises else row.seen.says
        return (
            f"prediction and outcome differ: {_plain(row.launch)} was predicted as "
            f"“{row.predicted}” and seen as “{row.seen}” ({what})",
            None,
            1,
        )
    for row in rows:
        if row.seen.outlook in _PROMISES:
            return f"{row.seen.outlook}, with {_plain(row.launch)}", row, 0
    # Of the launches that were not run, only those that `hpcenv run` makes can be promised.
    for row in (row for row in rows if row.launch.model == "hybrid"):
        if row.predicted in _PROMISES and row.seen.unproved == "cannot prove":
            return f"cannot be proved: {row.seen.says}", None, 1
        if row.predicted in _PROMISES and row.seen.outlook is None:
            return f"{row.predicted}, with {_plain(row.launch)}; predicted, {row.seen}", row, 0
    if not rows:
        return "the site offers no launch: it has neither an MPI nor Slurm that are known", None, 1
    best = rows[0]
    outlook = best.seen.outlook or best.predicted
    return f"{outlook}: no launch of this site makes these ranks one world", None, 1


def render(made: Report) -> str:
    """Return the report as text."""
    lines = [f"site   {made.site}", f"image  {made.image}", ""]
    cells = [("launch", "predicted", "seen")]
    cells += [(str(row.launch), str(row.predicted), str(row.seen)) for row in made.rows]
    widths = [max(len(line[column]) for line in cells) for column in (0, 1)]
    lines += [f"{a:{widths[0]}}    {b:{widths[1]}}    {c}".rstrip() for a, b, c in cells]
    told = [line for row in made.rows for line in _told(row)]
    lines += ["", *told] if told else []
    found = _findings(made.rows)
    lines += ["", *found] if found else []
    lines += ["", f"verdict: {made.verdict}"]
    lines += [f"  {made.next}"] if made.next else []
    return "\n".join(lines) + "\n"


def describe_site(site: SiteProfile) -> str:
    """Return a site in one line."""
    parts = [_or_unknown(site.arch, "architecture")]
    parts += [_mpi(mpi.library) for mpi in value_of(site.mpis) or ()]
    parts += [f"{fabric.kind} {fabric.rate}".strip() for fabric in value_of(site.fabrics) or ()]
    if driver := value_of(site.driver):
        parts.append(f"driver {driver}")
    if libc := value_of(site.libc):
        parts.append(f"glibc {libc}")
    if slurm := value_of(site.slurm):
        version = value_of(slurm.version)
        types = sorted(value_of(slurm.mpi_types) or ())
        parts.append(
            f"Slurm {version or ''}".rstrip() + (f" ({', '.join(types)})" if types else "")
        )
    return f"{site.name}: {', '.join(dict.fromkeys(parts))}"


def describe_image(facts: ImageFacts) -> str:
    """Return an image in one line."""
    parts = [_or_unknown(facts.arch, "architecture")]
    parts += [_mpi(mpi) for mpi in value_of(facts.mpis) or ()] or ["no MPI"]
    if libc := value_of(facts.libc):
        parts.append(f"glibc {libc}")
    if python := value_of(facts.python):
        parts.append(f"Python {python}")
    if tensorflow := value_of(facts.tensorflow):
        parts.append(f"TensorFlow {tensorflow}")
    if horovod := value_of(facts.horovod):
        built = value_of(horovod.version)
        parts.append(f"Horovod {built}" if built else "Horovod")
    return ", ".join(dict.fromkeys(parts))


def _mpi(mpi: Mpi) -> str:
    family = value_of(mpi.family)
    version = value_of(mpi.version)
    name = f"{family.product if family else mpi.soname} {version or ''}".rstrip()
    client = value_of(mpi.pmix) if mpi.pmix else None
    pmix = value_of(client.version) if client else None
    return f"{name} (PMIx {pmix})" if pmix else name


def _or_unknown(fact: Fact[str], what: str) -> str:
    return f"{what} unknown" if isinstance(fact, Unknown) else fact.value


def _told(row: Row) -> Iterable[str]:
    seen = row.seen
    if seen.outlook is not None:
        took = f" ({seen.seconds:.1f} s)" if seen.seconds is not None else ""
        yield f"seen     {_plain(row.launch)}: {seen.says}{took}"
    if row.differs or row.predicted is Outlook.UNKNOWN:
        yield from (f"    {line}" for line in seen.said)
    for surprise in seen.surprises:
        yield f"surprise {_plain(row.launch)}: {surprise}"


def _findings(rows: Sequence[Row]) -> list[str]:
    """Each finding once, with the launches it is about."""
    of: dict[tuple[str, str], tuple[Finding, list[Launch]]] = {}
    for row in rows:
        for finding in row.findings:
            of.setdefault((finding.rule, finding.says), (finding, []))[1].append(row.launch)
    order = list(Severity)[::-1]
    lines = []
    for finding, launches in sorted(of.values(), key=lambda item: order.index(item[0].severity)):
        about = "; ".join(_plain(launch) for launch in launches)
        lines.append(f"{finding.rule}  {finding.severity}  {about}: {finding.says}")
        facts = "; ".join(fact.value for fact in finding.evidence)
        lines += [f"    from {facts}"] if facts else []
        lines += [f"    → {line}" for line in finding.remedy.splitlines()]
    return lines


def _next(
    rows: Sequence[Row], good: Row | None, name: str, options: str, nodes: int, ranks: int
) -> str:
    if good is not None:
        over = f"-N {nodes}" if nodes > 1 else ""
        return " ".join(
            filter(None, ["hpcenv run", name, options, over, f"-n {ranks} -- COMMAND …"])
        )
    rules = [finding.rule for row in rows for finding in row.findings if finding.predicts]
    return f"hpcenv explain {rules[0]}" if rules else ""


def _plain(launch: Launch) -> str:
    return " ".join(str(launch).split())
