"""What a person declared in a profile outlives the next detection."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from hpcenv.base.known import Known
from hpcenv.image.facts import Mpi, Pmix
from hpcenv.site.model import HostEngine, SiteMpi, SiteProfile, Slurm

T = TypeVar("T")


def keep_declared(detected: SiteProfile, written: SiteProfile) -> SiteProfile:
    """Return the detected profile with the facts that were declared by hand in the written one.

    MPI installations and engines are the same where their names are.
    """
    return _kept(detected, written)


def _kept(new: T, old: T) -> T:
    if isinstance(old, Known) and old.how == "declared" and old.where == "profile":
        return old
    result: Any = new
    if isinstance(new, Known) and isinstance(old, Known):
        result = dataclasses.replace(new, value=_kept(new.value, old.value))
    elif isinstance(new, tuple) and isinstance(old, tuple):
        named = {item.name: item for item in old if isinstance(item, (SiteMpi, HostEngine))}
        result = tuple(_kept(item, named.get(getattr(item, "name", ""), item)) for item in new)
    elif type(new) is type(old) and _has_facts(new):
        result = type(new)(
            **{
                field.name: _kept(getattr(new, field.name), getattr(old, field.name))
                for field in dataclasses.fields(new)  # type: ignore[arg-type]
            }
        )
    return result  # type: ignore[no-any-return]


def _has_facts(value: object) -> bool:
    return isinstance(value, (SiteProfile, SiteMpi, Slurm, HostEngine, Mpi, Pmix))
