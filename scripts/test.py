"""Run lint and the areas of tests/areas.toml that are named, and say how each ended.

    scripts/test.py lint fast engine …

Exit status 0 when all is well, 1 otherwise. The last line counts tests over all areas.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from hpcenv.base.process import Stream, run

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "runs"
WHOLE_S = 75 * 60.0
"""Seconds after which the areas are ended wherever they are, unless their budgets give more."""

LINTERS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
)


@dataclass(frozen=True)
class Ended:
    """How an area ended: its counts of tests, and why it failed where it did."""

    area: str
    seconds: float
    budget_s: float
    counts: Counter[str]
    failure: str | None


def main(names: list[str]) -> int:
    areas = tomllib.loads((ROOT / "tests/areas.toml").read_text())
    REPORTS.mkdir(exist_ok=True)
    budget = 60.0 * sum(areas[name]["minutes"] for name in names if name != "lint")
    until = time.monotonic() + max(WHOLE_S, budget)
    ended = [_lint() if name == "lint" else _area(name, areas[name], until) for name in names]
    return _summary(ended)


def _lint() -> Ended:
    print("==> lint", flush=True)
    began = time.monotonic()
    failed = [
        " ".join(words)
        for words in LINTERS
        if subprocess.run([str(ROOT / ".venv/bin" / words[0]), *words[1:]], cwd=ROOT).returncode
    ]
    failure = ", ".join(failed) or None
    return Ended("lint", time.monotonic() - began, 180.0, Counter(), failure)


def _area(name: str, area: dict[str, object], until: float) -> Ended:
    print(f"\n==> {name}: {area['about']}", flush=True)
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    budget = float(str(area["minutes"])) * 60
    argv = [sys.executable, "-m", "pytest", "-m", str(area["select"]), "--durations=8"]
    argv += [f"--junitxml={report}", "-o", f"junit_suite_name={name}"]
    env = {**os.environ, "HYPOTHESIS_PROFILE": "campaign" if name == "campaign" else "default"}
    outcome = run(argv, deadline=until - time.monotonic(), cwd=ROOT, env=env, on_line=_echo)
    failure = None
    if outcome.timed_out:
        failure = "ended: no time was left"
    elif outcome.status == 5:
        failure = "no test was found"
    elif outcome.status != 0:
        failure = f"pytest ended with status {outcome.status}"
    return Ended(name, outcome.seconds, budget, _counts(report), failure)


def _echo(_: Stream, line: str) -> None:
    print(line, flush=True)


def _counts(report: Path) -> Counter[str]:
    if not report.is_file():
        return Counter()
    counts: Counter[str] = Counter()
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        number = {
            key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")
        }
        bad = number["failures"] + number["errors"]
        counts += Counter(
            passed=number["tests"] - bad - number["skipped"], failed=bad, skipped=number["skipped"]
        )
    return counts


def _summary(ended: list[Ended]) -> int:
    print("\narea        took      budget    passed  failed  skipped")
    for area in ended:
        numbers = "".join(f"{area.counts[key]:>8}" for key in ("passed", "failed", "skipped"))
        over = "past its budget" if area.seconds > area.budget_s else ""
        note = "".join(f"   {each}" for each in (area.failure, over) if each)
        print(f"{area.area:<10}{area.seconds:>6.0f} s{area.budget_s:>9.0f} s  {numbers}{note}")
    total: Counter[str] = sum((area.counts for area in ended), Counter())
    # An area that was ended, or a linter, counts as one failure where no test does.
    failed = total["failed"] or sum(area.failure is not None for area in ended)
    print(f"\n{total['passed']} passed, {failed} failed, {total['skipped']} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
