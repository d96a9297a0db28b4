"""The ELF reader against pyelftools, which shares no code with it, on this host's libraries."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.image.elf import MACHINES, Elf

_HERE = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


def _libraries() -> list[Path]:
    folders = [Path("/usr/lib") / triple for triple in _HERE.values()]
    names = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libz.so.1", "libcrypto.so.3")
    found = [folder / name for folder in folders for name in names if (folder / name).exists()]
    return [*found, Path("/bin/sh"), Path(sys.executable).resolve()]


@pytest.mark.parametrize("path", _libraries(), ids=str)
def test_every_part_is_what_pyelftools_reads(path: Path) -> None:
    with path.open("rb") as file, path.open("rb") as other:
        ours, theirs = Elf(file), ELFFile(other)
        tags = list(theirs.get_section_by_name(".dynamic").iter_tags())
        of = {tag.entry.d_tag: tag for tag in tags}
        assert ours.needed == tuple(t.needed for t in tags if t.entry.d_tag == "DT_NEEDED")
        assert ours.soname == (of["DT_SONAME"].soname if "DT_SONAME" in of else None)
        runpath = of["DT_RUNPATH"].runpath.split(":") if "DT_RUNPATH" in of else []
        assert list(ours.runpath) == runpath
        needs = theirs.get_section_by_name(".gnu.version_r")
        assert set(ours.version_needs) == {
            (library.name, aux.name) for library, auxes in needs.iter_versions() for aux in auxes
        }
        defined = theirs.get_section_by_name(".gnu.version_d")
        names = [next(aux).name for _, aux in defined.iter_versions()] if defined else []
        assert list(ours.version_definitions) == names
        symbols = {
            symbol.name: symbol.entry.st_shndx != "SHN_UNDEF"
            for symbol in theirs.get_section_by_name(".dynsym").iter_symbols()
            if symbol.name
        }
        assert set(ours.symbols) == set(symbols)
        assert any(entry.defined for entry in ours.symbols.values()) == any(symbols.values())


def test_machines_are_the_gabi_numbers() -> None:
    from elftools.elf.enums import ENUM_E_MACHINE as numbers

    known = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64", "riscv64": "EM_RISCV"}
    known |= {"ppc64le": "EM_PPC64", "s390x": "EM_S390", "armv7l": "EM_ARM", "i686": "EM_386"}
    for number, name in MACHINES.items():
        if name in known:
            assert numbers[known[name]] == number


_SMALL = Path("/bin/sh").resolve().read_bytes()


@given(
    cut=st.integers(0, len(_SMALL)),
    changes=st.lists(
        st.tuples(st.integers(0, 4095) | st.integers(0, len(_SMALL) - 1), st.integers(1, 255)),
        max_size=8,
    ),
)
def test_damage_is_a_value_error(cut: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(_SMALL)
    for at, mask in changes:
        data[at] ^= mask
    try:
        elf = Elf(io.BytesIO(bytes(data[: cut if not changes else len(data)])))
        _ = (elf.soname, elf.needed, elf.version_needs, elf.version_definitions, elf.symbols)
        _ = (elf.interpreter, elf.constants, elf.runpath)
    except ValueError:
        pass


def test_what_is_no_elf_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not an ELF file"):
        Elf(io.BytesIO(b"INPUT(libmpi.so.12)\n" + bytes(100)))
