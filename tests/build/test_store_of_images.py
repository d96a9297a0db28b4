"""Images by name and tag."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcenv.base.blobs import Digest
from hpcenv.base.errors import BadInput
from hpcenv.image.store import SIF, Image, Store, parse_tag


def put(store: Store, name: str, tag: str, key: str) -> Image:
    digest = Digest(key * 64)
    folder = store.packed / digest
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SIF).write_text(key)
    return store.tag(name, tag, digest)


def found(store: Store, ref: str) -> str:
    image = store.find(ref)
    assert isinstance(image, Image)
    return image.sif.read_text()


def test_a_tag_points_to_the_last_image_published_under_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "base", "1", "a")
    put(store, "base", "1", "b")
    assert found(store, "base:1") == "b"
    assert (store.packed / ("a" * 64) / SIF).read_text() == "a"


def test_a_bare_name_is_the_last_one_built(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "base", "2", "a")
    put(store, "base", "1", "b")
    assert found(store, "base") == "b"
    put(store, "base", "2", "a")
    assert found(store, "base") == "a"


def test_a_shared_store_comes_after_the_users_own(tmp_path: Path) -> None:
    shared = Store(tmp_path / "shared")
    put(shared, "base", "1", "a")
    put(shared, "other", "1", "c")
    own = Store(tmp_path / "own", shared.root)
    assert found(own, "base:1") == "a"
    put(own, "base", "1", "b")
    assert found(own, "base:1") == "b"
    assert [str(image) for image in own.images()] == ["base:1", "other:1"]


def test_a_miss_names_the_nearest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "tensorflow-horovod", "2026.12", "a")
    with pytest.raises(BadInput) as caught:
        store.find("tensorflow-horovd:2026.12")
    assert "tensorflow-horovod:2026.12" in (caught.value.remedy or "")
    with pytest.raises(BadInput, match=r"no file \./x\.sif"):
        store.find("./x.sif")


def test_a_path_of_a_sif_is_that_file(tmp_path: Path) -> None:
    file = tmp_path / "x.sif"
    file.write_text("")
    assert Store(tmp_path / "store").find(str(file)) == file


@pytest.mark.parametrize(
    "text", ["base", "Base:1", "base:", ":1", "a/b:1", "base:a b", "base:../x"]
)
def test_bad_names_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not NAME:TAG"):
        parse_tag(text)


def test_a_good_name() -> None:
    assert parse_tag("tensorflow-horovod:2026.12") == ("tensorflow-horovod", "2026.12")
