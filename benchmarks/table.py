"""The table of docs/benchmarks.md, from the committed results alone."""

from __future__ import annotations

from benchmarks.measure import ROOT, Result, Timed
from hpcenv.base.publish import publish
from hpcenv.base.record import dump_json, load_json

RESULTS = ROOT / "benchmarks/results"
TABLE = ROOT / "docs/tables/benchmarks.md"


def keep(result: Result) -> None:
    """Write one result."""
    with publish(RESULTS / f"{result.name}.json") as beside:
        beside.write_text(dump_json(result))


def write_table() -> None:
    """Write the table of all results."""
    files = sorted(RESULTS.glob("*.json"))
    with publish(TABLE) as beside:
        beside.write_text(table([load_json(Result, file) for file in files]))


def table(results: list[Result]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| what | ours (min / median / max) | against (min / median / max) | ratio | aim | met |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        against = f"{result.against.label}: {_times(result.against)}" if result.against else "–"
        ratio = f"{result.ratio:.2f}" if result.ratio is not None else "–"
        unit = " s" if result.aim_of == "seconds" else " ×"
        lines.append(
            f"| {result.says} | {_times(result.ours)} | {against} | {ratio} "
            f"| ≤ {result.aim:g}{unit} | {'yes' if result.met else '**no**'} |"
        )
    hosts = sorted({_host(result) for result in results})
    return "\n".join([*lines, "", *[f"Measured {words}." for words in hosts], ""])


def _times(timed: Timed) -> str:
    low, high = min(timed.seconds), max(timed.seconds)
    if len(timed.seconds) == 1:
        return f"{timed.median:.0f} s (one run)"
    return f"{low:.2f} / {timed.median:.2f} / {high:.2f} s"


def _host(result: Result) -> str:
    host = result.host
    return (
        f"{host.date} at {host.commit} on {host.cores} cores of {host.cpu}, {host.os}, "
        f"Linux {host.kernel}, Python {host.python}"
    )
