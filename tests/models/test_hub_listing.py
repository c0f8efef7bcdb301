"""A hub may list anything: nothing of it becomes a path, a size or a checksum before it was looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.errors import UserError
from localspec.models.hub import pull
from localspec.models.names import parse
from tests.models.hub_server import COMMIT, Hub, Repository

NAME = "someone/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"
DATA = b"GGUF" + os.urandom(2_000)


@pytest.fixture(autouse=True)
def offered(hub: Hub) -> Repository:
    hub.repositories[NAME] = Repository({FILE: DATA})
    return hub.repositories[NAME]


@pytest.fixture
def mine(empty_home: Path) -> Path:
    """A file of the user, which is called like the model."""
    path = empty_home / "documents" / FILE
    path.parent.mkdir()
    path.write_text("mine")
    return path


def refusal() -> str:
    with pytest.raises(UserError) as caught:
        pull(parse(NAME))
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value.message


def outside(home: Path, cache: Path) -> dict[Path, bytes]:
    """What lies in the home folder beside the cache; what LocalSpec remembers is its own."""
    own = (cache, home / "data", home / "state")
    files = (path for path in home.rglob("*") if not path.is_dir())
    return {path: path.read_bytes() for path in files if not any(map(path.is_relative_to, own))}


@pytest.mark.parametrize(
    "commit",
    [
        "documents",
        "../../../../documents",
        "A" * 40,
        "a" * 6,
        "a" * 65,
        "a/b/c/d/e",
        "....../",
        "refs.lock",
        "\0",
        "\ud800",
        "",
    ],
)
def test_a_commit_that_is_none_touches_no_file(
    hub: Hub, empty_home: Path, cache: Path, mine: Path, commit: str
) -> None:
    hub.listed["sha"] = str(mine.parent) if commit == "documents" else commit
    assert "without safe names and checksums" in refusal()
    assert not mine.is_symlink()
    assert outside(empty_home, cache) == {mine: b"mine"}
    assert hub.downloads == []


@pytest.mark.parametrize("commit", ["a" * 64, "0123abc", "2026-11-23_2"])
def test_a_commit_of_another_kind_of_repository(hub: Hub, commit: str) -> None:
    hub.listed["sha"] = hub.repositories[NAME].commit = commit
    assert pull(parse(NAME)).parent.name == commit


@pytest.mark.parametrize("name", ["C:tiny.gguf", "a\x1b[2Jb.gguf", "a\nb.gguf", "a\0b.gguf", "\ud800.gguf",
                                  "./tiny.gguf", "a//tiny.gguf", "a/../tiny.gguf", "/tiny.gguf"])  # fmt: skip
def test_a_name_that_no_file_should_have(hub: Hub, name: str) -> None:
    hub.listed_of_file["rfilename"] = name
    assert "without safe names and checksums" in refusal()
    assert hub.downloads == []


@pytest.mark.parametrize("size", ["12", 1.5, True, [1], {}, 2**70, float("nan"), float("inf"), -5])
def test_a_size_that_is_none(hub: Hub, size: object) -> None:
    hub.listed_of_file |= {"size": size, "lfs": {"sha256": "a" * 64, "size": size, "pointerSize": 1}}
    refusal()
    assert hub.downloads == []


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("sha", 7, ": its answer.sha is not a text"), ("sha", None, ": its answer.sha is not a text"),
     ("siblings", [{"rfilename": 7, "size": 1, "blobId": ""}], ": a file.name is not a text"),
     ("siblings", [{"rfilename": "a", "size": "1"}], ": a file.bytes is not a whole number"),
     ("siblings", [{"rfilename": "a", "lfs": [1]}], ": a file.lfs is not an object"),
     ("siblings", [{"rfilename": "a", "lfs": "x"}], ": a file.lfs is not an object"),
     ("siblings", [{}], ""), ("siblings", [1], ""), ("siblings", {"a": 1}, ""), ("siblings", "a", ""),
     ("siblings", None, "")],
)  # fmt: skip
def test_what_is_wrong_with_a_listing_is_reported(hub: Hub, field: str, value: object, words: str) -> None:
    hub.listed[field] = value
    assert refusal() == f"{hub.url} is not a Hugging Face hub{words}"


def test_what_a_hub_says_of_other_things_may_be_anything(hub: Hub) -> None:
    hub.listed |= {"lastModified": "yesterday", "createdAt": 5, "cardData": [], "safetensors": {}, "tags": 1}
    assert pull(parse(NAME)).read_bytes() == DATA


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"\xff\xfe{",
        b"",
        b"5",
        b"[]",
        b'"x"',
        b'{"sha": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:10]),
)
def test_json_that_is_none_or_has_no_end(hub: Hub, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    hub.raw["/api/"] = head + body
    assert refusal().startswith(f"{hub.url} is not a Hugging Face hub")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
PATHS = st.lists(
    st.sampled_from(["..", ".", "", "a", "C:", "\\", "documents", "blobs", "x" * 300, COMMIT]), max_size=6
).map("/".join)


@pytest.mark.slow
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(
    commit=ANYTHING | PATHS | st.from_regex(r"[0-9a-f]{40}", fullmatch=True),
    of_file=st.fixed_dictionaries(
        {},
        optional={
            "rfilename": ANYTHING | PATHS.map(lambda path: f"{path}.gguf"),
            "size": ANYTHING,
            "blobId": ANYTHING | PATHS,
            "lfs": ANYTHING | st.fixed_dictionaries({"sha256": ANYTHING | PATHS, "size": ANYTHING}),
        },
    ),
)
def test_whatever_is_listed_a_model_comes_whole_or_one_line_does(
    hub: Hub, empty_home: Path, cache: Path, commit: object, of_file: dict[str, object]
) -> None:
    hub.listed, hub.listed_of_file = {"sha": commit}, of_file
    try:
        path = pull(parse(NAME))
    except UserError as error:
        lines = str(error).splitlines()
        assert len(lines) == 1
    else:
        assert path.is_relative_to(cache)
        assert path.read_bytes() == DATA
    assert outside(empty_home, cache) == {}


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe"])
def test_what_stands_where_a_part_belongs_is_not_written_to(
    hub: Hub, empty_home: Path, cache: Path, mine: Path, kind: str
) -> None:
    part = cache / "models--someone--tiny-GGUF" / "blobs" / f"{hub.sha(NAME, FILE)}.incomplete"
    part.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(part)
    elif kind == "hard link":
        part.hardlink_to(mine)
    else:
        part.symlink_to(mine if kind == "link" else mine.with_name("new"))
    assert pull(parse(NAME)).read_bytes() == DATA
    assert outside(empty_home, cache) == {mine: b"mine"}
    assert not list(cache.rglob("*.incomplete"))


def test_the_note_of_the_newest_commit_is_not_written_through_a_link(cache: Path, mine: Path) -> None:
    newest = cache / "models--someone--tiny-GGUF" / "refs" / "main"
    newest.parent.mkdir(parents=True)
    newest.symlink_to(mine)
    pull(parse(NAME))
    assert (newest.read_text(), mine.read_text()) == (COMMIT, "mine")
