"""What a library of the host says of its own version when it is asked through its own API."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping

from hpcenv.base.errors import Outside
from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.process import run
from hpcenv.base.version import Version

# Loading a library runs its constructors, so it happens in a process of its own.
_SCRIPT = r"""
import ctypes, json, os, sys
def ucx(lib):
    parts = [ctypes.c_uint() for _ in range(3)]
    lib.ucp_get_version(*[ctypes.byref(part) for part in parts])
    return ".".join(str(part.value) for part in parts)
def ofi(lib):
    lib.fi_version.restype = ctypes.c_uint32
    number = lib.fi_version()
    return "%d.%d" % (number >> 16, number & 0xffff)
def pmix(lib):
    lib.PMIx_Get_version.restype = ctypes.c_char_p
    return lib.PMIx_Get_version().decode()
for name, path in json.loads(sys.argv[1]).items():
    try:
        said = {"says": globals()[name](ctypes.CDLL(path, mode=os.RTLD_NOW))}
    except (OSError, AttributeError) as error:
        said = {"wrong": str(error)}
    print(json.dumps({"name": name, **said}), flush=True)
"""
_CALLS = {
    "ucx": ("ucp_get_version", "ucx_info -v"),
    "ofi": ("fi_version", "fi_info --version"),
    "pmix": ("PMIx_Get_version", "pmix_info"),
}
_DEADLINE_S = 10.0


def spoken_versions(files: Mapping[str, str]) -> dict[str, Fact[Version]]:
    """Ask libraries for their versions.

    Parameters
    ----------
    files : mapping
        ``ucx``, ``ofi`` and ``pmix`` to the file of each: ``libucp.so``, ``libfabric.so`` (whose
        API has major and minor alone), ``libpmix.so``.
    """
    if not files:
        return {}
    facts: dict[str, Fact[Version]] = {
        name: Unknown(f"{file} could not be loaded", _CALLS[name][1])
        for name, file in files.items()
    }
    argv = [sys.executable, "-I", "-S", "-c", _SCRIPT, json.dumps(dict(files))]
    try:
        outcome = run(argv, deadline=_DEADLINE_S)
    except Outside:
        return facts
    for line in outcome.out.splitlines():
        if not line.startswith('{"name": '):
            continue  # some libraries print when they are loaded
        said = json.loads(line)
        name = said["name"]
        call, ask = _CALLS[name]
        number = re.search(r"\d+(?:\.\d+)+(?:(?:a|b|rc)\d+)?", said.get("says", ""))
        if number:
            facts[name] = Known(Version.parse(number[0]), "ran", f"{files[name]}: {call}")
        else:
            facts[name] = Unknown(f"{files[name]}: {said.get('wrong') or said}", ask)
    return facts
