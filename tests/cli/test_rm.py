"""`localspec rm`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.storage.kept_caches import caches_dir
from localspec.storage.paths import config_dir
from tests.cli.conftest import Invoke
from tests.models.disk import REPOSITORY, files_below, model_bytes, put

DRAFT = model_bytes() + b"1"
NAME = f"{REPOSITORY}:Q8_0"


@pytest.fixture(autouse=True)
def cache(empty_home: Path) -> Path:
    folder = empty_home / "cache" / "huggingface" / "hub"
    put(folder, "tiny-Q8_0.gguf", DRAFT)
    return folder


def test_it_asks_and_says_what_is_freed(invoke: Invoke, cache: Path) -> None:
    outcome = invoke("rm", NAME, typed="y\n")
    assert (outcome.code, outcome.out) == (0, "")
    assert f"{NAME}: frees 2.88 MiB" in outcome.err
    assert f"Delete {NAME}? [y/N] " in outcome.err
    assert outcome.err.endswith("deleted; 2.88 MiB freed\n")
    assert files_below(cache) == set()


@pytest.mark.parametrize("typed", ["n\n", "\n", "", "yesterday\n"])
def test_anything_but_yes_deletes_nothing(invoke: Invoke, cache: Path, typed: str) -> None:
    before = files_below(cache)
    outcome = invoke("rm", NAME, typed=typed)
    assert outcome.code == 1
    assert outcome.err.endswith("nothing was deleted\n")
    assert files_below(cache) == before


def test_yes_needs_no_question(invoke: Invoke, cache: Path) -> None:
    assert invoke("rm", "--yes", NAME.upper()).code == 0
    assert files_below(cache) == set()


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_one_to_ask(invoke: Invoke, cache: Path, flags: list[str]) -> None:
    before = files_below(cache)
    outcome = invoke("rm", NAME, *flags)
    assert outcome.code == 2
    assert "--yes" in outcome.err
    assert files_below(cache) == before


def test_json(invoke: Invoke) -> None:
    outcome = invoke("rm", "--yes", "--json", NAME)
    value = json.loads(outcome.out)
    assert (value["schema"], value["freed"], value["models"][0]["name"]) == (1, len(DRAFT), NAME)
    assert len(value["models"][0]["deleted"]) == 2
    assert outcome.err == ""


def test_a_name_that_no_one_has_is_reported_before_anybody_is_asked(invoke: Invoke) -> None:
    outcome = invoke("rm", "no-such-model")
    assert outcome.code == 2
    assert "no-such-model" in outcome.err
    assert "--yes" not in outcome.err


def test_a_name_that_no_one_has(invoke: Invoke) -> None:
    outcome = invoke("rm", "--yes", f"{REPOSITORY}:Q9_0")
    assert outcome.code == 2
    assert f"did you mean {NAME}?" in outcome.err


def test_one_wrong_name_keeps_all(invoke: Invoke, cache: Path) -> None:
    before = files_below(cache)
    assert invoke("rm", "--yes", NAME, "nobody").code == 2
    assert files_below(cache) == before


def test_the_bundled_pair_stays(invoke: Invoke, demo_draft: Path) -> None:
    outcome = invoke("rm", "--yes", "demo-draft")
    assert outcome.code == 2
    assert "deletes nothing else" in outcome.err
    assert demo_draft.exists()


def test_two_names_that_share_a_file_go_together(invoke: Invoke, cache: Path) -> None:
    put(cache, "tiny-Q4_0.gguf", DRAFT)
    assert invoke("rm", "--yes", f"{REPOSITORY}:Q4_0").code == 0
    assert invoke("rm", "--yes", NAME).code == 0
    assert files_below(cache) == set()


def test_of_two_names_of_a_file_the_given_one_goes(invoke: Invoke, cache: Path) -> None:
    other = put(cache, "tiny-Q4_0.gguf", DRAFT)
    outcome = invoke("rm", "--yes", NAME)
    assert outcome.err.startswith(f"{NAME}: frees 0 bytes\n")
    assert other.read_bytes() == DRAFT
    assert not list(cache.rglob("tiny-Q8_0.gguf"))


def test_all_names_of_a_file_take_it_with_them(invoke: Invoke, cache: Path) -> None:
    put(cache, "tiny-Q4_0.gguf", DRAFT)
    outcome = invoke("rm", "--yes", "--json", f"{REPOSITORY}:Q4_0", NAME)
    assert json.loads(outcome.out)["freed"] == len(DRAFT)
    assert files_below(cache) == set()


def test_a_model_named_twice_is_deleted_once(invoke: Invoke) -> None:
    outcome = invoke("rm", "--yes", "--json", NAME, REPOSITORY)
    value = json.loads(outcome.out)
    assert (value["freed"], len(value["models"])) == (len(DRAFT), 1)


def test_it_says_that_the_configuration_opens_the_model(invoke: Invoke, cache: Path, tmp_path: Path) -> None:
    (link,) = cache.rglob("tiny-Q8_0.gguf")
    own = tmp_path / "own.gguf"
    own.symlink_to(link)
    config = config_dir() / "config.toml"
    for named in (link, link.resolve(), own):
        config.write_text(f"[models]\ntarget = '{named}'\n", encoding="utf-8")
        assert "config.toml opens it" in invoke("rm", NAME, typed="n\n").err
    config.write_text("[models]\ntarget = '/other.gguf'\n", encoding="utf-8")
    assert "config.toml" not in invoke("rm", NAME, typed="n\n").err


def test_a_mistake_in_the_configuration_is_reported_before_anything_goes(invoke: Invoke, cache: Path) -> None:
    (config_dir() / "config.toml").write_text("theem = 'x'\n", encoding="utf-8")
    refused = invoke("rm", NAME, "--yes", "--json")
    assert refused.code == 2
    assert "config.toml, line 1: there is no key `theem`" in refused.err
    assert list(cache.rglob("tiny-Q8_0.gguf"))


def test_caches_of_conversations_are_deleted_and_chats_and_models_stay(invoke: Invoke, cache: Path) -> None:
    folder = caches_dir()
    folder.mkdir(parents=True)
    for name in ("a-1.kv", "a-2.chat7.kv", "unfinished.tmp"):
        (folder / name).write_bytes(bytes(2**20))
    outcome = invoke("rm", "--caches", typed="n\n")
    assert (outcome.code, len(files_below(folder))) == (1, 3)
    assert "2 conversations, 2 MiB in " in outcome.err
    assert invoke("rm", "--caches", "--json").code == 2
    outcome = invoke("rm", "--caches", "--yes", "--json")
    assert json.loads(outcome.out) == {"schema": 1, "freed": 3 * 2**20, "caches": 3}
    assert files_below(folder) == set()
    assert files_below(cache)
    for wrong in ((), ("--caches", NAME)):
        assert invoke("rm", *wrong).code == 2
