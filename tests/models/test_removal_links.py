"""Deleting asks where a path really leads: whatever links do, nothing outside the caches is touched."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from localspec.errors import StoreError, UserError
from localspec.models import caches
from localspec.models.caches import known_places
from localspec.models.local import LocalModel, find_models, named
from localspec.models.removal import Removal, plan_removal, remove
from tests.models.disk import NEW, OLD, SMALL, files_below, put

HUB, LOOSE, STUDIO = "cache/huggingface/hub", "cache/llama.cpp", ".lmstudio/models"
A, B = (f"{HUB}/models--anna--{name}" for name in "ab")
BLOBS = ("1" * 64, "2" * 64, "3" * 64)

FOLDERS = (
    "library", "library/whole", "library/deep/er", HUB, A, f"{A}/blobs", f"{A}/snapshots",
    f"{A}/snapshots/{NEW}", f"{A}/snapshots/{OLD}", f"{A}/snapshots/{NEW}/sub", f"{A}/refs", B, f"{B}/blobs",
    f"{B}/snapshots/{NEW}", LOOSE, STUDIO, f"{STUDIO}/anna", f"{STUDIO}/anna/a", f"{STUDIO}/anna/a/sub",
    f"{STUDIO}/anna/b", f"{STUDIO}/bob", ".ollama/models", "disk",
)  # fmt: skip
FILES = (
    *(f"{repository}/blobs/{blob}" for repository in (A, B) for blob in BLOBS),
    f"{A}/blobs/{BLOBS[0]}.incomplete",
    *(f"{A}/snapshots/{commit}/a-{quant}.gguf" for commit in (NEW, OLD) for quant in ("Q4_0", "Q8_0")),
    f"{A}/snapshots/{NEW}/sub/a-Q6_K.gguf", f"{B}/snapshots/{NEW}/b-Q4_0.gguf", f"{A}/refs/main",
    f"{LOOSE}/a-Q4_0.gguf", f"{LOOSE}/b.gguf", f"{STUDIO}/x.gguf", f"{STUDIO}/anna/a/a-Q4_0.gguf",
    f"{STUDIO}/anna/a/sub/a-Q8_0.gguf", f"{STUDIO}/anna/b/b-00001-of-00002.gguf",
    f"{STUDIO}/anna/b/b-00002-of-00002.gguf", f"{STUDIO}/bob/c.gguf", "library/whole/w-Q4_0.gguf",
    "library/whole/w-Q8_0.gguf", "library/notes.txt", "library/deep/er/d.gguf", "disk/x-Q4_0.gguf",
)  # fmt: skip
ENTRIES = FOLDERS + FILES

Step = tuple[str, str, str]
"""What is made, where, and what it is or leads to: `file`, `link` or `hard link`."""

LINKS = st.lists(st.tuples(st.just("link"), st.sampled_from(FOLDERS), st.sampled_from(FOLDERS)), max_size=4)
IN_HUB: list[Step] = [
    ("file", f"{A}/blobs/{BLOBS[0]}", "1"),
    ("file", f"{A}/blobs/{BLOBS[1]}", "2"),
    ("link", f"{A}/snapshots/{NEW}/a-Q4_0.gguf", f"{A}/blobs/{BLOBS[0]}"),
    ("link", f"{A}/snapshots/{NEW}/a-Q8_0.gguf", f"{A}/blobs/{BLOBS[1]}"),
    ("link", f"{A}/snapshots/{OLD}/a-Q4_0.gguf", f"{A}/blobs/{BLOBS[0]}"),
    ("file", f"{A}/refs/main", NEW),
]
IN_STUDIO: list[Step] = [
    ("file", f"{STUDIO}/anna/a/a-Q4_0.gguf", "1"),
    ("file", f"{STUDIO}/anna/b/b-00001-of-00002.gguf", "3"),
    ("file", f"{STUDIO}/anna/b/b-00002-of-00002.gguf", "4"),
]
ON_DISK: list[Step] = [
    ("file", "library/whole/w-Q4_0.gguf", "1"),
    ("file", "library/deep/er/d.gguf", "5"),
    ("file", "disk/x-Q4_0.gguf", "6"),
    ("file", f"{LOOSE}/b.gguf", "7"),
]
MORE = st.lists(
    st.tuples(st.just("file"), st.sampled_from(FILES), st.sampled_from(["1", "2"]))
    | st.tuples(st.just("link"), st.sampled_from(ENTRIES), st.sampled_from(ENTRIES))
    | st.tuples(
        st.just("up"), st.sampled_from(ENTRIES), st.sampled_from([".", "..", "../..", "itself", "gone"])
    )
    | st.tuples(st.just("hard link"), st.sampled_from(FILES), st.sampled_from(FILES)),
    max_size=8,
)
STEPS = st.builds(
    lambda links, parts, more: [*links, *(step for part in parts for step in part), *more],
    LINKS,
    st.lists(st.sampled_from([IN_HUB, IN_STUDIO, ON_DISK]), max_size=3),
    MORE,
)
"""Links to folders come first, so that what is made then lies where they lead."""


@contextmanager
def home() -> Iterator[tuple[Path, Path]]:
    """Make a folder for one example, and deep in it an empty home folder."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        outermost = Path(os.path.realpath(folder))
        path = outermost.joinpath("1", "2", "3", "4", "home")
        path.mkdir(parents=True)
        patch.setattr(caches, "OLLAMA_SERVICE", path / "service")
        patch.setenv("HOME", str(path))
        patch.delenv("LOCALAPPDATA", raising=False)
        for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
            patch.setenv(f"XDG_{kind}_HOME", str(path / kind.lower()))
        yield outermost, path


def build(outermost: Path, root: Path, steps: list[Step]) -> None:
    """Make the files and links that can be made, and nothing that lies or leads outside of `outermost`."""
    for kind, where, what in steps:
        path = root / where
        if not leads_into(outermost, path.parent):
            continue
        with suppress(OSError):  # a file stands where a folder is to be, or a link leads round
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                with path.open("xb") as file:
                    file.write(SMALL + what.encode())
            elif kind == "hard link":
                path.hardlink_to(root / what)
            elif kind == "link":
                path.symlink_to(root / what)
            elif leads_into(outermost, path.parent / what):
                path.symlink_to(path.name if what == "itself" else what)


def leads_into(folder: Path, path: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(folder)


def entries(outermost: Path) -> dict[Path, tuple[int, object]]:
    """Return everything below a folder but LocalSpec's notes: what each entry is, and what is in it.

    No link is followed.
    """
    found: dict[Path, tuple[int, object]] = {}
    for folder, folders, files in os.walk(outermost):
        if Path(folder).name == "home":
            folders[:] = [name for name in folders if name not in ("config", "data", "state")]
        for path in (Path(folder, name) for name in (*folders, *files)):
            kind = stat.S_IFMT(path.lstat().st_mode)
            content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[path] = (kind, content)
    return found


def is_closed(outermost: Path) -> bool:
    """Return whether no link and no cache leads out of a folder: what lies there is this machine's."""
    roots = (place.path for place in known_places())
    return all(leads_into(outermost, path) for path in (*entries(outermost), *roots))


def planned(model: LocalModel) -> Removal | None:
    """Return what deleting a model would delete; None where that is refused."""
    try:
        return plan_removal(model)
    except UserError:
        return None


def goes_with_its_repository(path: Path, what: tuple[int, object]) -> bool:
    """Return whether a file is the name of a commit, which a repository without models needs no more."""
    way = next((path.parts[n + 1 :] for n, step in enumerate(path.parts) if step.startswith("models--")), ())
    return way[:1] == ("refs",) and isinstance(what[1], bytes) and len(what[1]) <= 64


def check_a_removal(outermost: Path, model: LocalModel) -> None:
    """Delete a model, and check what is left."""
    roots = [Path(os.path.realpath(place.path)) for place in known_places() if place.is_cache]
    before, real = entries(outermost), os.path.realpath(model.path)
    others = {other.path: os.path.realpath(other.path) for other in find_models() if other.shape is not None}
    removal = planned(model)
    if removal is None:
        event("refused")
        return
    event("deletes" if removal.paths else "deletes nothing")
    assert is_closed(outermost)
    wanted = {Path(os.path.realpath(path.parent)) / path.name for path in removal.paths}
    remove(removal)
    after = entries(outermost)
    lost = before.keys() - after.keys()
    assert after == {path: what for path, what in before.items() if path not in lost}
    for path in lost:
        assert any(path != cache and path.is_relative_to(cache) for cache in roots), path
        assert (
            path in wanted or before[path][0] == stat.S_IFDIR or goes_with_its_repository(path, before[path])
        ), path
    for path, leads_to in others.items():
        if leads_to != real:
            assert os.path.realpath(path) == leads_to
            assert Path(leads_to).is_file()


LINKED = [("file", "library/whole/w-Q4_0.gguf", "1"), ("link", f"{STUDIO}/anna/a", "library/whole")]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, database=None)
@given(STEPS)
@example([*LINKED])
@example([*LINKED, ("file", "library/whole/w-Q8_0.gguf", "2")])
@example([("link", f"{STUDIO}/anna", "library"), ("file", "library/whole/w-Q4_0.gguf", "1")])
@example([("link", STUDIO, "disk"), ("file", f"{STUDIO}/anna/a/a-Q4_0.gguf", "1")])
@example([("link", HUB, "disk"), ("file", f"{A}/blobs/{BLOBS[0]}", "1"),
          ("link", f"{A}/snapshots/{NEW}/a-Q4_0.gguf", f"{A}/blobs/{BLOBS[0]}")])  # fmt: skip
@example([("link", f"{A}/blobs", "disk"), ("file", f"{A}/blobs/{BLOBS[0]}.incomplete", "1")])
@example([("link", f"{A}/snapshots", "library"), ("file", f"{A}/blobs/{BLOBS[0]}", "1"),
          ("file", f"{A}/snapshots/{NEW}/a-Q4_0.gguf", "1")])  # fmt: skip
@example([("link", A, "library"), ("file", f"{A}/blobs/{BLOBS[0]}", "1"),
          ("link", f"{A}/snapshots/{NEW}/a-Q4_0.gguf", f"{A}/blobs/{BLOBS[0]}")])  # fmt: skip
@example([("file", f"{A}/snapshots/{NEW}/a-Q4_0.gguf", "1"), ("file", f"{A}/blobs/{BLOBS[1]}", "2"),
          ("link", f"{A}/snapshots/{OLD}/a-Q8_0.gguf", f"{A}/snapshots/{NEW}/a-Q4_0.gguf")])  # fmt: skip
@example([("up", f"{STUDIO}/anna/a", ".."), ("file", f"{STUDIO}/anna/b/b-00001-of-00002.gguf", "1")])
@example([("link", f"{STUDIO}/bob/c.gguf", f"{STUDIO}/x.gguf"),
          ("link", f"{STUDIO}/x.gguf", "disk/x-Q4_0.gguf"), ("file", "disk/x-Q4_0.gguf", "1")])  # fmt: skip
@example([("link", f"{A}/snapshots", f"{A}/blobs"), *IN_HUB,
          ("up", f"{A}/blobs/{BLOBS[0]}.incomplete", ".")])  # fmt: skip
@example([*IN_HUB, ("link", LOOSE, f"{A}/snapshots/{NEW}/a-Q4_0.gguf")])
def test_nothing_outside_the_caches_is_touched(steps: list[Step]) -> None:
    with home() as (outermost, root):
        build(outermost, root, steps)
        assert is_closed(outermost)
        for model in find_models():
            for name in (model, *model.others):
                if name.source not in ("package", "bundled") and os.path.lexists(name.path):
                    check_a_removal(outermost, name)


def lm_studio(name: str) -> Path:
    path = Path.home() / STUDIO / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def library(empty_home: Path) -> Path:
    """A folder of one's own, with a model."""
    folder = empty_home / "library" / "whole"
    folder.mkdir(parents=True)
    (folder / "whole-Q4_0.gguf").write_bytes(SMALL)
    return folder


def meant(text: str) -> LocalModel:
    model = named(text, find_models())
    assert model is not None
    return model


def test_through_a_linked_folder_only_the_link_goes(library: Path) -> None:
    link = lm_studio("anna/Linked")
    link.symlink_to(library)
    removal = plan_removal(meant("anna/Linked:Q4_0"))
    assert (removal.paths, removal.freed) == ((link,), 0)
    assert removal.kept == (f"{library}/whole-Q4_0.gguf stays: it is outside the cache",)
    remove(removal)
    assert not link.is_symlink()
    assert files_below(library) == {"whole-Q4_0.gguf"}


def test_a_chain_of_linked_folders_loses_the_link_in_the_cache(library: Path) -> None:
    (library.parent / "second").symlink_to(library)
    link = lm_studio("anna")
    (library.parent.parent / "users").mkdir()
    (library.parent.parent / "users" / "Linked").symlink_to(library.parent / "second")
    link.symlink_to(library.parent.parent / "users")
    removal = plan_removal(meant("anna/Linked:Q4_0"))
    assert removal.paths == (link,)


def test_a_linked_folder_with_other_models_stays_linked(library: Path) -> None:
    (library / "other-Q8_0.gguf").write_bytes(SMALL + b"8")
    link = lm_studio("anna/Linked")
    link.symlink_to(library)
    with pytest.raises(UserError, match=f"{link} leads to {library}, where nothing is deleted") as caught:
        plan_removal(meant("anna/Linked:Q4_0"))
    assert "other models need the link, too" in caught.value.hint


def test_a_link_to_another_folder_of_the_cache_goes_alone() -> None:
    lm_studio("anna/real/m-Q4_0.gguf").write_bytes(SMALL)
    link = lm_studio("bob")
    link.symlink_to(lm_studio("anna"))
    model = meant("anna/real:Q4_0")
    through = next((each for each in model.others if "bob" in each.path.parts), None)
    if through is not None:  # found by both of its ways
        assert plan_removal(through).paths == (link,)
    assert plan_removal(model).paths == (lm_studio("anna/real/m-Q4_0.gguf"),)


def test_blobs_on_another_disk_stay(cache: Path, tmp_path: Path) -> None:
    link = put(cache, "tiny-Q8_0.gguf", SMALL)
    blobs = link.resolve().parent
    blobs.rename(tmp_path / "blobs")
    blobs.symlink_to(tmp_path / "blobs")
    removal = plan_removal(meant("someone/tiny-GGUF:Q8_0"))
    assert (removal.paths, removal.freed) == ((link,), 0)
    assert "it is outside the cache" in removal.kept[0]
    remove(removal)
    assert len(files_below(tmp_path / "blobs")) == 1


def test_a_link_that_changes_its_aim_after_the_question_is_not_followed(library: Path) -> None:
    path = lm_studio("anna/mine/whole-Q4_0.gguf")
    path.write_bytes(SMALL)
    removal = plan_removal(meant("anna/mine:Q4_0"))
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(library)
    with pytest.raises(StoreError, match="it is no longer in a cache"):
        remove(removal)
    assert files_below(library) == {"whole-Q4_0.gguf"}
