"""The plan as a Containerfile for plain docker, podman or buildah, complete in itself."""

from __future__ import annotations

import json
import re
import shlex

from hpcenv.build import export, steps
from hpcenv.build.export import INDEX, MIRRORS, Ours
from hpcenv.build.plan import BuildPlan, Stage, inputs

_WAY = (
    "Built by:  docker build --build-arg MIRRORS='…' --build-arg INDEX='…' -f THIS .\n"
    "# BOOTSTRAP is any Debian image; it makes the root file system and does not enter it."
)
_FETCH = "fetch"


def containerfile(plan: BuildPlan, ours: Ours) -> str:
    """Return the Containerfile.

    Parameters
    ----------
    ours : mapping of Digest to bytes
        The content of the runtime and the patches, which are written into it.
    """
    first = next(stage for stage in plan.stages if export.bootstrap_of(stage))
    bootstrap = export.bootstrap_of(first)
    assert bootstrap is not None
    parts = [
        export.head(plan, _WAY),
        f"ARG BOOTSTRAP=debian:{bootstrap.suite}\nFROM ${{BOOTSTRAP}} AS {_FETCH}\n"
        f"ARG {MIRRORS}\nARG {INDEX}\n",
        _run(
            "apt-get update\n"
            "apt-get install -y --no-install-recommends mmdebstrap python3 ca-certificates\n"
        ),
    ]
    words = f'"${MIRRORS}" "${INDEX}"'
    for stage in plan.stages:
        if wanted := inputs(stage):
            folder = f"/in/{stage.name}"
            parts.append(_run(export.download(wanted, folder, words)))
            parts += [_run(piece) for piece in export.embed(wanted, ours, folder)]
    make = shlex.join(steps.bootstrap(bootstrap, f"/in/{first.name}", "/tree"))
    parts.append(
        _run(
            f"umask 022\ncd /in/{first.name}\n{steps.INDEX}"
            f"SOURCE_DATE_EPOCH={plan.epoch} {make}\nrm -rf /tree/dev/*\n"
        )
    )
    for stage in plan.stages:
        parts.append(_stage(plan, stage, bootstrapped=stage is first))
    parts.append(f"FROM scratch\nCOPY --from={plan.final} / /\n")
    parts.append("".join(f"ENV {name}={_quoted(value)}\n" for name, value in plan.env.items()))
    parts.append("".join(f"LABEL {name}={_quoted(text)}\n" for name, text in plan.labels.items()))
    parts.append('ENTRYPOINT ["/.singularity.d/runscript"]\n')
    return "\n".join(part for part in parts if part)


def _stage(plan: BuildPlan, stage: Stage, *, bootstrapped: bool) -> str:
    lines = [f"FROM {stage.parent or 'scratch'} AS {stage.name}"]
    if bootstrapped:
        lines.append(f"COPY --from={_FETCH} /tree/ /")
    elif inputs(stage):
        lines.append(f"COPY --from={_FETCH} /in/{stage.name}/ {steps.INPUTS}/")
    lines += [f"COPY --from={name} {path} {path}" for name, path in stage.takes]
    body = export.script(stage)
    if body or not bootstrapped:
        run = _run(export.exports(plan.epoch) + body + export.clean([stage]))
        lines.append(run.rstrip("\n"))
    return "\n".join(lines) + "\n"


def _run(script: str) -> str:
    """Return a RUN instruction of shell lines; older builders know no here-documents."""
    lines = [line for line in script.rstrip("\n").split("\n") if line.strip()]
    joined = []
    for line in lines[:-1]:
        goes_on = line.endswith("\\") or re.search(r"(\bdo|\bthen|\{|\()$", line)
        joined.append(line if line.endswith("\\") else f"{line} \\" if goes_on else f"{line}; \\")
    return "\n".join(["RUN set -eu; \\", *joined, lines[-1]]) + "\n"


def _quoted(value: str) -> str:
    # JSON's quotes, and no variable of the builder's.
    return json.dumps(value, ensure_ascii=False).replace("$", "\\$")
