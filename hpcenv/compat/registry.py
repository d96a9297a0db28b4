"""Every rule, by name."""

from __future__ import annotations

from hpcenv.compat.model import Rule
from hpcenv.compat.rules.abi import ABI001, ABI002
from hpcenv.compat.rules.arch import ARCH001
from hpcenv.compat.rules.family import MPI001
from hpcenv.compat.rules.horovod import HVD001, HVD002
from hpcenv.compat.rules.isolation import SHM001, SHM002
from hpcenv.compat.rules.known import IMAGE001, SITE001
from hpcenv.compat.rules.libc import LIBC001
from hpcenv.compat.rules.pmi import PMI001
from hpcenv.compat.rules.pmix import PMIX001, PMIX002, PMIX003

RULES: tuple[Rule, ...] = (
    SITE001,
    IMAGE001,
    ARCH001,
    MPI001,
    PMI001,
    PMIX001,
    PMIX002,
    PMIX003,
    ABI001,
    ABI002,
    LIBC001,
    SHM001,
    SHM002,
    HVD001,
    HVD002,
)
