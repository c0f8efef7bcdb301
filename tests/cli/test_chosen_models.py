"""Models that were chosen on the screen, and how they open in place of those that flags name."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import pytest

from localspec.app.fetching import make_default
from localspec.app.opener import LocalOpener, OpeningWatch
from localspec.app.opening import find_files, with_choice
from localspec.app.recommendation import LocalTarget, RankedPair, choice_named, choices
from localspec.cli import screen
from localspec.cli.shared.arguments import pair_request
from localspec.cli.shared.opening import TERMINAL
from localspec.demo import bundled_pair
from localspec.errors import Cancelled, UserError
from localspec.hardware import machine as machine_module
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.inference.worker.wire import LogLine
from localspec.models.pair_request import ModelChoice, PairRequest
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from tests.hardware.machines import machine
from tests.llama import tiny
from tests.models.disk import PROJECTOR
from tests.models.hub_server import Repository, in_place_of_the_hub
from tests.models.test_ollama import USUAL, store

TARGET, DRAFT = bundled_pair()
BUNDLED = ModelChoice(TARGET, DRAFT)


@pytest.fixture(autouse=True)
def invented_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "known_machine", lambda **_: machine())


@pytest.fixture
def other(empty_home: Path) -> Path:
    folder = empty_home / "cache" / "llama.cpp"
    folder.mkdir(parents=True)
    return tiny.llama(folder / "other.gguf")


def test_what_cannot_be_opened_is_listed_with_the_reason(other: Path) -> None:
    recipe = tiny.Recipe(other.with_name("newer.gguf"), "qwen9")
    recipe.vocabulary()
    recipe.ones("token_embd")
    newer = recipe.write()
    found = {each.model.path: each for each in choices(()) if isinstance(each, LocalTarget)}
    assert found[other].drafts
    assert found[newer].drafts == ()
    assert "the architecture `qwen9`, which this version of LocalSpec does not know" in found[newer].problem


def write_config(text: str) -> None:
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "config.toml").write_text(text, encoding="utf-8")


def opened_as(request: PairRequest) -> OpenPlan:
    return as_asked(find_files(request, TERMINAL), request)


def test_a_choice_goes_before_the_flags_that_name_models(other: Path) -> None:
    write_config("[models]\ncontext = 512\n")
    args = screen.parser().parse_args(["-m", "gone.gguf", "-md", "gone.gguf", "-td", "1", "--mode", "sd"])
    pair = opened_as(with_choice(pair_request(args), BUNDLED))
    assert (pair.target.path, pair.draft and (pair.draft.path, pair.draft.threads)) == (TARGET, (DRAFT, 1))
    assert pair.target.context == 512
    alone = opened_as(
        with_choice(pair_request(args), ModelChoice(other, None))
    )  # neither -td nor --mode sd is refused
    assert (alone.target.path, alone.draft) == (other, None)


def test_the_screen_offers_models_whatever_their_names_and_no_companions(empty_home: Path) -> None:
    folder = empty_home / ".lmstudio" / "models" / "anna" / "Qwen-MTP-GGUF"
    folder.mkdir(parents=True)
    for name in ("Qwen-MTP-Q6_K.gguf", "mtp-imatrix-Q8_0.gguf"):
        (folder / name).write_bytes(DRAFT.read_bytes() + name.encode())
    (folder / "Qwen-vision-F16.gguf").write_bytes(PROJECTOR)
    store(empty_home / ".ollama" / "models", f"{USUAL}/tiny/3b", TARGET.read_bytes() + b"1")
    names = [row.model.name for row in choices(()) if isinstance(row, LocalTarget)]
    assert sorted(names) == ["anna/Qwen-MTP-GGUF:Q6_K", "anna/Qwen-MTP-GGUF:Q8_0", "demo-target", "tiny:3b"]
    assert choice_named("tiny:3b", ()).target.name.startswith("sha256-")


@pytest.mark.slow
def test_a_choice_opens_and_the_default_models_open_again() -> None:
    models = LocalOpener(pair_request(screen.parser().parse_args([])))
    log: list[LogLine] = []
    for choice, draft in ((ModelChoice(TARGET, None), None), (None, DRAFT)):
        with closing(models.open(choice, OpeningWatch(lambda _share: True, log.append)).models) as opened:
            assert opened.target.path == TARGET
            assert (opened.draft and opened.draft.path) == draft
    with pytest.raises(UserError, match="gone"):
        models.open(ModelChoice(Path("/gone.gguf"), None), OpeningWatch(lambda _share: True, log.append))


def test_checking_what_came_from_the_hub_can_be_stopped(other: Path) -> None:
    data = other.read_bytes()
    blob = other.with_name("blobs") / hashlib.sha256(data).hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(data)
    models = LocalOpener(pair_request(screen.parser().parse_args([])))
    with pytest.raises(Cancelled):
        models.open(ModelChoice(blob, None), OpeningWatch(lambda _share: False))
    blob.write_bytes(data[:-1] + b"?")
    with pytest.raises(UserError, match="is damaged: its checksum differs from the one on Hugging Face"):
        models.open(ModelChoice(blob, None), OpeningWatch())


def test_what_opens_at_every_start_is_written_where_it_is_not_what_opens_anyway(other: Path) -> None:
    write_config('theme = "nord"  # mine\n')
    for choice, named in ((ModelChoice(other, None), (other, None)), (BUNDLED, (None, None))):
        make_default(choice)
        config = read_config(config_dir() / "config.toml")
        assert (config.target, config.draft, config.theme) == (*named, "nord")
    assert "# mine" in (config_dir() / "config.toml").read_text(encoding="utf-8")


def test_what_could_be_opened_here(other: Path) -> None:
    (other.with_name("damaged.gguf")).write_bytes(b"GGUF and no more")
    tiny.embedding(other.with_name("embedding.gguf"))
    found = list(choices(()))
    targets = {row.title: row for row in found if isinstance(row, LocalTarget)}
    assert sorted(targets) == ["damaged", "demo-target (included)", "embedding", "other"]
    included = targets["demo-target (included)"]
    assert [draft.name for draft in included.drafts] == ["demo-draft", "none"]
    assert all(draft.placement for draft in included.drafts)
    assert [draft.name for draft in targets["other"].drafts] == ["none"]
    assert targets["embedding"].problem
    assert targets["embedding"].drafts == ()
    assert targets["damaged"].drafts == ()
    pairs = [row for row in found if isinstance(row, RankedPair)]
    assert pairs
    assert all(pair.missing for pair in pairs)
    assert found.index(pairs[0]) == len(targets)


def test_a_name_means_the_model_that_m_takes_with_the_draft_that_serves_it(other: Path) -> None:
    assert choice_named("demo-target", ()) == BUNDLED
    assert choice_named("other", ()) == choice_named(str(other), ()) == ModelChoice(other, None)
    with pytest.raises(UserError, match="no model `others` is on this computer; did you mean other"):
        choice_named("others", ())


@pytest.mark.slow
def test_names_open_where_the_screen_has_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    args = screen.parser().parse_args(["-m", "demo-target", "-md", "demo-draft"])
    models = LocalOpener(pair_request(args))
    monkeypatch.setattr("sys.stderr", object())  # on which nothing can be drawn
    with closing(models.open(None, OpeningWatch()).models) as opened:
        assert (opened.target.path, opened.draft and opened.draft.path) == (TARGET, DRAFT)


@pytest.mark.slow
def test_models_of_the_hub_are_downloaded_in_silence_with_progress_and_can_be_stopped(
    other: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    models = LocalOpener(pair_request(screen.parser().parse_args(["-hf", "org/tiny-GGUF"])))
    shares: list[float] = []
    log: list[LogLine] = []

    def goes_on(share: float) -> bool:
        shares.append(share)
        return True

    with in_place_of_the_hub(monkeypatch) as hub:
        hub.repositories["org/tiny-GGUF"] = Repository({"tiny-Q4_K_M.gguf": other.read_bytes()})
        with pytest.raises(Cancelled):
            models.open(None, OpeningWatch(lambda _share: False, log.append))
        with closing(models.open(None, OpeningWatch(goes_on, log.append)).models) as opened:
            assert opened.target.path.name == "tiny-Q4_K_M.gguf"
    assert 1.0 in shares
    assert any("pulling org/tiny-GGUF" in line.text for line in log)
    said = "".join(capfd.readouterr())
    assert not {"pulling", "%", "\x1b"} & {word for word in ("pulling", "%", "\x1b") if word in said}
