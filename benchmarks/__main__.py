"""`python -m benchmarks [NAME …]`: run benchmarks, keep their results, write the table.

Without a name: all but ``demo``, which takes a cold build twice.
"""

from __future__ import annotations

import sys

from benchmarks.cases import CASES, LONG
from benchmarks.table import keep, write_table
from hpcenv.base.errors import Failure


def main(names: list[str]) -> int:
    """Run the benchmarks that are named."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(CASES)}", file=sys.stderr)
        return 2
    for name in names or [name for name in CASES if name not in LONG]:
        print(f"==> {name}", flush=True)
        try:
            result = CASES[name]()
        except Failure as failure:
            print(f"benchmark {name}: {failure}", file=sys.stderr)
            return failure.status
        keep(result)
        ratio = f", ratio {result.ratio:.2f}" if result.ratio is not None else ""
        print(f"    {result.ours.median:.3f} s{ratio}; aim met: {result.met}")
    write_table()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
