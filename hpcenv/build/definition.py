"""The plan as a definition file for plain apptainer."""

from __future__ import annotations

from hpcenv.build.plan import BuildPlan


def definition(plan: BuildPlan) -> str:
    """Return the definition file."""
    return f"Bootstrap: scratch\n# {plan.final}\n"
