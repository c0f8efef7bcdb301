"""`localspec models`."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path

import pytest

from localspec import units
from localspec.models.local import find_models, named
from localspec.storage.paths import config_dir
from tests.cli.conftest import Invoke
from tests.llama import tiny
from tests.models.disk import PROJECTOR, REPOSITORY, header_bytes, model_bytes, put

DRAFT = model_bytes()


@pytest.fixture
def cache(empty_home: Path) -> Path:
    return empty_home / "cache" / "huggingface" / "hub"


def test_the_table(invoke: Invoke, cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT + b"1")
    outcome = invoke("models")
    headings, *rows = outcome.out.splitlines()
    assert outcome.code == 0
    assert headings.split()[:6] == ["NAME", "ARCHITECTURE", "PARAMETERS", "QUANT", "SIZE", "CONTEXT"]
    ours = ["demo-draft", "demo-target", "smollm2-draft"]
    assert [row.split()[0] for row in rows] == [*ours, f"{REPOSITORY}:Q8_0"]
    assert rows[-1].split()[1:3] == ["llama", "1.38M"]
    assert rows[-1].endswith("Hugging Face cache")
    assert outcome.err.startswith("4 models, ")


def test_pairs_show_the_same_vocabulary(invoke: Invoke) -> None:
    target, draft, other = (
        next(row.split()[-2] for row in invoke("ls").out.splitlines() if row.startswith(name))
        for name in ("demo-target", "demo-draft", "smollm2-draft")
    )
    assert target == draft != other


def test_what_cannot_be_used_is_listed_with_the_reason(invoke: Invoke, cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT[:1000])
    last = invoke("models").out.splitlines()[-1]
    assert last.startswith(f"{REPOSITORY}:Q8_0 (1000 bytes) cannot be used: ends inside its header")


def test_other_names_of_a_file_are_reported(invoke: Invoke, cache: Path) -> None:
    for quant in ("Q4_0", "Q8_0"):
        put(cache, f"tiny-{quant}.gguf", DRAFT + b"1")
    assert f"  {REPOSITORY}:Q8_0 is the same file as {REPOSITORY}:Q4_0" in invoke("models").out.splitlines()


def test_a_folder_of_ones_own(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(DRAFT + b"1")
    assert "mine " in invoke("models", str(tmp_path)).out
    outcome = invoke("models", str(tmp_path / "gone"))
    assert outcome.code == 2
    assert "there is no folder" in outcome.err


def test_json(invoke: Invoke, cache: Path) -> None:
    path = put(cache, "tiny-Q8_0.gguf", DRAFT + b"1")
    put(cache, "broken-Q4_0.gguf", b"no")
    outcome = invoke("models", "--json")
    value = json.loads(outcome.out)
    assert (outcome.code, outcome.err, value["schema"]) == (0, "", 1)
    by_name = {model["name"]: model for model in value["models"]}
    model, broken = by_name[f"{REPOSITORY}:Q8_0"], by_name[f"{REPOSITORY}:Q4_0"]
    assert (model["path"], model["bytes"], model["source"]) == (str(path), len(DRAFT) + 1, "hub")
    assert (model["parameters"], model["quant"], model["problem"]) == (1_376_896, "BF16", None)
    assert (broken["parameters"], "not a GGUF file" in broken["problem"]) == (None, True)


def test_json_is_strict_for_names_that_are_not_text(invoke: Invoke, tmp_path: Path) -> None:
    for name in (b"bad\xff\xfename.gguf", b"bad\xff\xfdname.gguf"):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_bytes(DRAFT + name)
    outcome = invoke("models", "--json", str(tmp_path))
    value = json.loads(outcome.out)
    assert json.dumps(value, ensure_ascii=False).encode("utf-8")
    names = [model["name"] for model in value["models"] if "bad" in model["name"]]
    assert sorted(names) == ["bad\\udcff\\udcfdname", "bad\\udcff\\udcfename"]
    listed = {model.name: model for model in find_models([tmp_path])}
    found = named(names[0], listed.values())
    assert found is not None
    assert found.path.exists()


@pytest.mark.slow
def test_a_folder_may_be_named_as_file_managers_write_it(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "mine.gguf").write_bytes(DRAFT + b"1")
    assert "mine " in invoke("models", folder.as_uri()).out
    assert invoke("show", (folder / "mine.gguf").as_uri()).code == 0


def test_files_without_an_ending_are_found_in_a_named_folder(invoke: Invoke, tmp_path: Path) -> None:
    for name, content in (("sha256-abc", DRAFT + b"1"), ("notes", b"text"), ("x.bin", DRAFT)):
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    names = [row.split()[0] for row in invoke("models", str(tmp_path)).out.splitlines()]
    assert "sha256-abc" in names
    assert not {"notes", "x.bin", "x", "pipe"} & set(names)


def test_companions_are_listed_for_what_they_are(invoke: Invoke, cache: Path) -> None:
    put(cache, "mmproj-F16.gguf", PROJECTOR)
    put(cache, "head-Q8_0.gguf", header_bytes("fc.weight", general__architecture="dflash"))
    lines = invoke("models").out.splitlines()
    assert any(line.startswith(f"{REPOSITORY}/mmproj-F16.gguf (") and "mmproj" in line for line in lines)
    assert any(line.startswith(f"{REPOSITORY}/head-Q8_0.gguf (") and "draft head" in line for line in lines)
    kinds = {each["name"]: each["kind"] for each in json.loads(invoke("models", "--json").out)["models"]}
    assert kinds[f"{REPOSITORY}/mmproj-F16.gguf"] == "projector"
    assert kinds["demo-draft"] == "model"


@pytest.mark.usefixtures("fake")
def test_m_takes_a_file_of_a_repository(invoke: Invoke, cache: Path) -> None:
    for name in ("A/one-Q8_0.gguf", "B/two-Q8_0.gguf"):
        put(cache, name, DRAFT + name.encode())
    listed = invoke("models").out
    assert f"{REPOSITORY}/A/one-Q8_0.gguf " in listed
    assert invoke("run", "Hi", "-m", f"{REPOSITORY}/A/one-Q8_0.gguf", "-md", "demo-draft").code == 0
    outcome = invoke("run", "Hi", "-m", f"{REPOSITORY}/C/one-Q8_0.gguf")
    assert outcome.code == 2
    assert f"no model `{REPOSITORY}/C/one-Q8_0.gguf` is on this computer" in outcome.err


@pytest.mark.usefixtures("fake")
def test_m_takes_a_name_of_the_list(invoke: Invoke, cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT + b"1")
    assert invoke("run", "Hi", "-m", f"{REPOSITORY}:q8_0", "-md", "demo-draft").code == 0
    outcome = invoke("run", "Hi", "-m", f"{REPOSITORY}:Q4_0")
    assert outcome.code == 2
    assert f"localspec pull {REPOSITORY}:Q4_0" in outcome.err


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1024, "1 KiB"), (98_362_432, "93.8 MiB"), (2**30 - 1, "1 GiB"),
     (4_920_000_000, "4.58 GiB"), (1023 * 2**20, "1023 MiB"), (1.5 * 2**40, "1.5 TiB")],
)  # fmt: skip
def test_sizes(count: float, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (5400, "1 h 30 min"), (7320, "2 h 2 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


def test_a_number_with_its_noun() -> None:
    assert [units.counted(number, "chat") for number in range(3)] == ["0 chats", "1 chat", "2 chats"]


@pytest.mark.parametrize(("count", "text"), [(12, "12"), (134_515_008, "135M"), (7_615_616_512, "7.62B")])
def test_parameters(count: int, text: str) -> None:
    assert units.number(count) == text


def test_what_would_rule_the_terminal_is_shown_in_one_line(invoke: Invoke, tmp_path: Path) -> None:
    def architecture(recipe: tiny.Recipe) -> None:
        recipe.writer.add_tokenizer_pre("\x1b]0;owned\x07")

    tiny.llama(tmp_path / "a\n\x1b[2J.gguf", adjust=architecture)
    out = invoke("models", str(tmp_path)).out
    assert "a [2J" in out
    assert "\x1b" not in out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["~nobody-of-this-name/models", "x" * 300, "~nobody-of-this-name/a.gguf"])
def test_odd_names_are_mistakes_and_no_accidents(invoke: Invoke, name: str) -> None:
    for verb in (["models"], ["show"], ["pair"], ["run", "Hi", "-m"]):
        outcome = invoke(*verb, name)
        assert outcome.code == 2
        assert outcome.err.startswith("error: ")
        assert name in outcome.err


def test_a_configured_model_that_is_gone_says_where_it_is_chosen(invoke: Invoke) -> None:
    (config_dir() / "config.toml").write_text("[models]\ntarget = '/gone.gguf'\n", encoding="utf-8")
    outcome = invoke("plan")
    assert outcome.code == 2
    assert "config.toml, line 2: `target` names no file: /gone.gguf\n" in outcome.err
    assert "`localspec setup` chooses what opens without -m" in outcome.err
    assert "localspec setup" not in invoke("plan", "-m", "/gone.gguf").err


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["models", "show", "pull", "rm", "recommend"])
def test_the_traceback_of_an_accident_can_be_asked_for(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def break_down(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("an accident")

    module = import_module(f"localspec.cli.{verb}")
    for step in ("on_this_computer", "_find", "fetch", "ranking"):
        monkeypatch.setattr(module, step, break_down, raising=False)
    words = [] if verb in ("models", "recommend") else ["a/b"]
    assert "unexpected RuntimeError: an accident" in invoke(verb, *words).err
    assert "Traceback" in invoke(verb, "-v", *words).err
