"""Containerfile and images/ follow from today's recipe, runtime and renderers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hpcenv.image.store import Store
from hpcenv.lock.files import load_lock, misfits
from hpcenv.lock.resolve import patches, runtime
from hpcenv.recipe.load import load_recipe
from hpcenv.site.profile import load_site

ROOT = Path(__file__).resolve().parents[2]
IMAGES = runpy.run_path(str(ROOT / "scripts/images.py"))
MEND = "this is not what its sources give today; run:  make images"


def test_they_are_what_make_images_writes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lock = load_lock(ROOT / IMAGES["LOCK"])
    recipe, site = load_recipe(IMAGES["RECIPE"]), load_site(IMAGES["SITE"])
    assert not misfits(lock, recipe, site), MEND
    own = (*patches(recipe, store.blobs), runtime(store.blobs))
    assert lock.of("patch", "runtime") == own, MEND
    for file, text in IMAGES["rendered"](lock, store).items():
        # Not compared by `==` in the assertion, which would print hundreds of kilobytes.
        same = (ROOT / file).read_text(encoding="utf-8") == text
        assert same, f"{file}: {MEND}"


@pytest.mark.parametrize("file", [IMAGES["LOCK"], IMAGES["FOLDER"] / "manifest.json"], ids=str)
def test_they_name_no_place_of_any_host(file: Path) -> None:
    text = (ROOT / file).read_text()
    assert "://" not in text
    assert not [path for path in ("/home/", "/root", "/tmp", "/srv/") if path in text]
