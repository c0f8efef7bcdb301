"""Setup on the command line, with an invented machine and downloads that are no downloads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.app import setup as app_setup
from localspec.app.recommendation import RankedPair
from localspec.cli import run
from localspec.cli import setup as verb
from localspec.errors import UnavailableError, UnreachableError, UserError
from localspec.hardware.device_info import Machine
from localspec.models.catalogue import Catalogue, approximate_shape
from localspec.models.default_pair import default_pair
from localspec.models.names import Reference
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from tests.cli.choosing import entry, on_disk, pair
from tests.cli.conftest import Invoke
from tests.cli.requests import unplaced
from tests.hardware.machines import machine
from tests.llama import tiny

BIG, SMALL = entry("big", 3), entry("small", 0.3)


class World:
    """What setup sees of the world: which files are there, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[str] = []
        self.measured: list[bool] = []
        self.offline = False
        self.draft_differs = False
        self.unknown: set[str] = set()  # names that the hub does not have
        self.damaged: set[str] = set()  # names that arrive damaged
        self.pairs = [pair(BIG, SMALL)]

    def machine(self, fresh: bool = False, *_: object, may_measure: bool = True) -> Machine:
        if may_measure:
            self.measured.append(fresh)
        return machine()

    def fetch(self, reference: Reference) -> Path:
        if self.offline:
            raise UserError("the hub cannot be reached", "check the network")
        if str(reference) in self.unknown:
            raise UnavailableError(f"nobody has {reference}", "take another")
        if str(reference) in self.damaged:
            raise UnreachableError(f"{reference} arrived damaged", "pull again")
        path = self.folder / f"{reference.repository.rpartition('/')[2]}-{reference.quant}.gguf"
        is_small = "small" in path.name
        self.fetched.append(str(reference))
        return tiny.llama(path, change=77 if is_small and self.draft_differs else None)

    def ranking(self, found: Machine, task: str | None) -> tuple[object, ...]:
        local = [
            replace(on_disk(model.reference, approximate_shape(model)), path=path)
            for model in {model for known in self.pairs for model in known.models}
            if (path := self.folder / f"{model.key}-GGUF-Q4_K_M.gguf").exists()
        ]
        from localspec.app import recommendation
        from localspec.models.pairing import PairingVerdict

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(recommendation, "may_serve", lambda _a, _b: PairingVerdict(True, "", 10))
            return recommendation.recommend(found, self.pairs, local)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    made = World(tmp_path)
    monkeypatch.setattr(app_setup, "known_machine", made.machine)
    monkeypatch.setattr(verb, "fetch", made.fetch)
    monkeypatch.setattr(app_setup, "ranking", made.ranking)
    return made


def config_file() -> Path:
    return config_dir() / "config.toml"


def test_yes_on_a_pipe_downloads_places_and_writes(invoke: Invoke, world: World) -> None:
    outcome = invoke("setup", "--yes", "--json")
    assert outcome.code == 0
    assert world.fetched == ["user/big-GGUF:Q4_K_M", "user/small-GGUF:Q4_K_M"]
    assert world.measured == [False]
    config = read_config(config_file())
    assert config.target == world.folder / "big-GGUF-Q4_K_M.gguf"
    assert config.draft == world.folder / "small-GGUF-Q4_K_M.gguf"
    value = json.loads(outcome.out)
    assert (value["schema"], value["written"], value["target"]) == (1, True, str(config.target))
    assert value["plan"]["target"]["devices"] == []
    assert "+target = " in outcome.err

    again = invoke("setup", "--yes")
    assert "already has these settings" in again.err
    assert len(world.fetched) == 2


def test_a_pair_that_the_hub_does_not_have_makes_room_for_the_next(invoke: Invoke, world: World) -> None:
    world.pairs = [pair(entry("best", 4), SMALL, score=90), pair(BIG, SMALL)]
    world.unknown = {"user/best-GGUF:Q4_K_M"}
    outcome = invoke("setup", "--yes")
    assert outcome.code == 0
    assert "nobody has user/best-GGUF:Q4_K_M" in outcome.err
    assert read_config(config_file()).target == world.folder / "big-GGUF-Q4_K_M.gguf"


def test_a_pair_that_cannot_be_downloaded_makes_room_for_the_next_where_nobody_is_asked(
    invoke: Invoke, world: World
) -> None:
    world.pairs = [pair(entry("best", 4), SMALL, score=90), pair(BIG, SMALL)]
    world.damaged = {"user/best-GGUF:Q4_K_M"}
    assert invoke("setup", typed="s\n1\ny\nq\n").code == 0
    assert not config_file().exists()
    outcome = invoke("setup", "--yes")
    assert outcome.code == 0
    assert "best-GGUF:Q4_K_M arrived damaged" in outcome.err
    assert read_config(config_file()).target == world.folder / "big-GGUF-Q4_K_M.gguf"


def test_where_nothing_can_be_reached_only_pairs_with_other_sources_are_tried(
    invoke: Invoke, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry(f"m{number}", 4) for number in range(5)]
    world.pairs = [pair(each, SMALL, score=90 - number) for number, each in enumerate(entries)]
    monkeypatch.setattr(app_setup, "shipped", lambda: Catalogue("2026-01-01", (*entries, SMALL), ()))
    world.damaged = {each.reference for each in entries}
    outcome = invoke("setup", "--yes")
    assert outcome.code == 2
    assert outcome.err.count("arrived damaged") == 2
    assert "error: no pair that fits this machine could be downloaded" in outcome.err
    assert not config_file().exists()


def test_a_pair_that_the_hub_does_not_have_is_not_offered_again(invoke: Invoke, world: World) -> None:
    world.pairs = [pair(entry("best", 4), SMALL, score=90), pair(BIG, SMALL)]
    world.unknown = {"user/best-GGUF:Q4_K_M"}
    before, after = invoke("setup", typed="s\n1\ny\nq\n").err.split("nobody has user/best-GGUF:Q4_K_M")
    assert "1. Best Q4_K_M + Small Q4_K_M" in before
    assert "1. Big Q4_K_M + Small Q4_K_M" in after
    assert "Best" not in after


def test_where_the_hub_has_no_pair_at_all_those_that_are_here_are_written(
    invoke: Invoke, world: World
) -> None:
    world.unknown = {"user/small-GGUF:Q4_K_M"}
    outcome = invoke("setup", "--yes")
    assert outcome.code == 0
    assert "Nothing in the catalogue fits it." in outcome.err
    assert not world.folder.joinpath("small-GGUF-Q4_K_M.gguf").exists()


def test_a_damaged_model_on_disk_is_not_configured(invoke: Invoke, world: World) -> None:
    model = world.fetch(Reference(BIG.source, BIG.quant))
    blob = world.folder / "blobs" / ("a" * 64)
    blob.parent.mkdir()
    model.rename(blob)
    model.symlink_to(blob)
    outcome = invoke("setup", "--yes")
    assert outcome.code == 2
    assert f"error: {model} is damaged: " in outcome.err
    assert not config_file().exists()


def test_a_user_is_asked_and_may_leave(invoke: Invoke, world: World) -> None:
    outcome = invoke("setup", typed="s\n1\ny\ny\nq\n")
    assert outcome.code == 0
    assert "Nothing was written." in outcome.err
    assert not config_file().exists()
    assert world.measured == []
    assert len(world.fetched) == 2


def test_a_skipped_download_keeps_what_is_configured_and_can_be_taken_back(
    invoke: Invoke, world: World
) -> None:
    config_file().write_text("[models]\ncontext = 512\n", encoding="utf-8")
    assert "already has these settings" in invoke("setup", typed="s\n1\ns\ns\ny\n").err
    assert world.fetched == []
    assert invoke("setup", typed="s\n1\ns\nb\ny\ns\ny\n").code == 0
    assert len(world.fetched) == 2
    assert read_config(config_file()).target == world.folder / "big-GGUF-Q4_K_M.gguf"


def test_measuring_again_measures_afresh(invoke: Invoke, world: World) -> None:
    invoke("setup", typed="y\nb\na\ny\nq\n")
    assert world.measured == [False, True, True]


@pytest.mark.usefixtures("world")
def test_without_a_terminal_nothing_is_asked(invoke: Invoke) -> None:
    outcome = invoke("setup", piped=b"y\ny\n")
    assert outcome.code == 2
    assert "--yes" in outcome.err
    assert not config_file().exists()


@pytest.mark.usefixtures("world")
def test_the_bundled_pair_needs_no_names(invoke: Invoke) -> None:
    config_file().write_text('theme = "nord"\n[models]\ntarget = "x.gguf" # gone\n', encoding="utf-8")
    outcome = invoke("setup", "--yes", "--bundled")
    assert outcome.code == 0
    assert config_file().read_text(encoding="utf-8") == 'theme = "nord"\n[models]\n'
    assert read_config(config_file()).target is None


@pytest.mark.usefixtures("world")
def test_files_on_disk_are_taken_if_they_are_a_pair(invoke: Invoke, tmp_path: Path) -> None:
    large, odd = tiny.llama(tmp_path / "large.gguf"), tiny.llama(tmp_path / "odd.gguf", change=77)
    outcome = invoke("setup", "--yes", "-m", str(large), "-md", str(odd))
    assert outcome.code == 2
    assert "token 77 is 'F' in the target" in outcome.err
    assert not config_file().exists()
    assert invoke("setup", "--yes", "-m", str(large)).code == 0
    config = read_config(config_file())
    assert (config.target, config.draft) == (large, None)


@pytest.mark.usefixtures("world")
def test_a_model_that_is_only_in_the_catalogue_is_to_be_pulled_first(invoke: Invoke) -> None:
    outcome = invoke("setup", "--yes", "-m", "qwen3-8b")
    assert outcome.code == 2
    assert "Qwen/Qwen3-8B-GGUF:Q4_K_M is not on this computer" in outcome.err
    assert "`localspec pull Qwen/Qwen3-8B-GGUF:Q4_K_M` downloads it" in outcome.err


def test_a_draft_that_turns_out_wrong_stays_out(invoke: Invoke, world: World) -> None:
    world.draft_differs = True
    outcome = invoke("setup", "--yes")
    assert outcome.code == 0
    assert "the catalogue is wrong about this pair" in outcome.err
    assert read_config(config_file()).draft is None


@pytest.mark.usefixtures("world")
def test_a_draft_that_would_stay_closed_is_not_configured(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("setup", "--yes").code == 0
    assert read_config(config_file()).draft is not None
    monkeypatch.setattr(RankedPair, "opens_draft", False)
    assert invoke("setup", "--yes").code == 0
    config = read_config(config_file())
    assert (config.target is not None, config.draft) == (True, None)


def test_a_download_that_fails_leaves_everything_as_it_was(invoke: Invoke, world: World) -> None:
    world.offline = True
    config_file().write_text('theme = "nord"\n', encoding="utf-8")
    outcome = invoke("setup", "--yes")
    assert outcome.code == 2
    assert "error: the hub cannot be reached" in outcome.err
    assert config_file().read_text(encoding="utf-8") == 'theme = "nord"\n'
    asked = invoke("setup", typed="s\n1\ny\nt\ns\ny\n")
    assert asked.code == 0
    assert "Which models?" in asked.err


def test_ctrl_c_leaves_everything_as_it_was(
    invoke: Invoke, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Reference) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "fetch", interrupted)
    assert invoke("setup", "--yes").code == 130
    assert not config_file().exists()
    assert world.fetched == []


@pytest.mark.usefixtures("world")
def test_a_broken_configuration_is_reported_first(invoke: Invoke) -> None:
    config_file().write_text("[models\n", encoding="utf-8")
    outcome = invoke("setup", "--yes")
    assert outcome.code == 2
    assert "config.toml, line 1" in outcome.err
    assert "Recommended" not in outcome.err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [(("-md", "x"), "without a target"), (("--bundled", "-m", "x"), "cannot be combined")],
)
def test_flags_that_do_not_go_together(flags: tuple[str, ...], complaint: str, invoke: Invoke) -> None:
    outcome = invoke("setup", "--yes", *flags)
    assert outcome.code == 2
    assert complaint in outcome.err


def names_a_package(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.startswith(("target", "draft"))]
    return bool(lines)


def test_models_of_packages_are_never_named_in_the_configuration(invoke: Invoke, world: World) -> None:
    target, draft = default_pair()
    for arguments in (["-m", str(target), "-md", str(draft)], ["-m", str(target)], ["--bundled"]):
        config_file().unlink(missing_ok=True)
        assert invoke("setup", "--yes", *arguments).code == 0
        assert not names_a_package(config_file().read_text(encoding="utf-8"))
    assert world.fetched == []


@pytest.mark.usefixtures("world")
def test_the_path_of_a_package_that_moved_still_opens() -> None:
    target, draft = (
        Path("/gone/python3.9/site-packages", *path.parts[-2:]).as_posix() for path in default_pair()
    )
    config_file().write_text(f'[models]\ntarget = "{target}"\ndraft = "{draft}"\n', encoding="utf-8")
    args = run.parser().parse_args(["Hi"])
    opened = unplaced(args)
    assert opened.draft is not None
    assert (opened.target.path, opened.draft.path) == default_pair()


@pytest.mark.parametrize(("written", "kept"), [(512, 512), (100, 100), (10**6, 0)])
def test_a_context_that_a_user_wrote_is_kept_where_the_models_have_it(
    invoke: Invoke, world: World, written: int, kept: int
) -> None:
    world.pairs = [pair(BIG, SMALL)]
    config_file().write_text(f"[models]\ncontext = {written}  # chosen\n", encoding="utf-8")
    assert invoke("setup", "--yes").code == 0
    assert read_config(config_file()).context == kept
    assert "# chosen" in config_file().read_text(encoding="utf-8")
