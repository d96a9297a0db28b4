"""The plan as a Containerfile for plain docker, podman or buildah."""

from __future__ import annotations

from hpcenv.build.plan import BuildPlan


def containerfile(plan: BuildPlan) -> str:
    """Return the Containerfile."""
    return f"# {plan.final}\n"
