from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.models.names import Reference
from localspec.models.shape import ModelShape, read_shape
from tests.cli.conftest import Invoke
from tests.hardware.shapes import SHAPES, Build, make
from tests.llama import tiny

pytestmark = pytest.mark.slow


def test_the_bundled_target_in_words(invoke: Invoke, demo_target: Path) -> None:
    outcome = invoke("show", str(demo_target))
    assert outcome.code == 0
    assert outcome.out.startswith(
        "LocalSpec demo target\n  llama, 4.23M parameters in BF16, 8.33 MiB on disk\n"
    )
    assert "6 layers, 192 wide, 3 attention heads" in outcome.out
    assert "leaves 4.5 KiB in the cache" in outcome.out
    assert "trained on up to 1,024 tokens" in outcome.out
    assert "without a draft model" in outcome.err


def test_what_a_chat_template_does_is_reported(invoke: Invoke, tmp_path: Path) -> None:
    folder = Path(__file__).parent.parent / "llama/templates"
    strict = tiny.llama(tmp_path / "s.gguf", template=(folder / "strict.jinja").read_text(encoding="utf-8"))
    said = invoke("show", str(strict)).out
    assert "later system messages become part of the question\n" in said
    assert "questions in a row are joined\n" in said
    assert "an answer ends at </s> <|im_end|> <|im_start|>\n" in said
    assert (
        json.loads(invoke("show", str(strict), "--json").out)["chat_template"]["traits"]["takes_system"]
        is True
    )
    thinks = tiny.llama(tmp_path / "t.gguf", template=(folder / "thinks.jinja").read_text(encoding="utf-8"))
    assert "the model thinks first: prompts end with <think>\n" in invoke("show", str(thinks)).out
    broken = tiny.llama(tmp_path / "b.gguf", template="{{ messages | fromjson }}")
    assert "has a mistake: No filter named 'fromjson'" in invoke("show", str(broken)).out


def test_a_name_that_models_lists(invoke: Invoke) -> None:
    listed = json.loads(invoke("models", "--json").out)["models"][0]["name"]
    assert json.loads(invoke("show", listed, "--json").out)["schema"] == 1


def test_contexts_up_to_the_trained_one(invoke: Invoke, tmp_path: Path) -> None:
    path = make(tmp_path / "a.gguf", Build(bare=True, context=40_000))
    needs = json.loads(invoke("show", str(path), "--json").out)["needs"]
    assert [need["context"] for need in needs] == [2048, 8192, 32768]
    assert all(need["total"] == need["weights"] + need["cache"] + need["compute"] for need in needs)
    assert needs[0]["cache"] * 4 == needs[1]["cache"]
    [one] = json.loads(invoke("show", str(path), "--json", "-c", "100000").out)["needs"]
    assert one["context"] == 100_000


@pytest.mark.parametrize(("trained", "shown"), [(32768, [2048, 8192, 32768]), (2047, [2047])])
def test_the_trained_context_itself_is_among_them(
    invoke: Invoke, tmp_path: Path, trained: int, shown: list[int]
) -> None:
    path = make(tmp_path / "a.gguf", Build(bare=True, context=trained))
    needs = json.loads(invoke("show", str(path), "--json").out)["needs"]
    assert [need["context"] for need in needs] == shown


def test_windows_experts_and_running_states(invoke: Invoke, tmp_path: Path) -> None:
    window = invoke("show", str(make(tmp_path / "w.gguf", SHAPES["sliding window"]))).out
    assert "7 of the layers look back 512 tokens at most" in window
    experts = invoke("show", str(make(tmp_path / "m.gguf", SHAPES["mixture of experts"]))).out
    assert "2 experts of each layer" in experts
    state = invoke("show", str(tiny.recurrent(tmp_path / "r.gguf"))).out
    assert "recurrent state of 0 MiB, and processes text again after a rejection" in state
    assert "in the cache" not in state


def test_a_name_that_would_rule_the_terminal(invoke: Invoke, tmp_path: Path) -> None:
    def rename(recipe: tiny.Recipe) -> None:
        recipe.writer.add_name("Fine\x1b[2J\nmodel")

    out = invoke("show", str(tiny.llama(tmp_path / "a.gguf", adjust=rename))).out
    assert out.startswith("Fine[2J model\n")


def test_a_model_on_the_hub(invoke: Invoke, demo_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Reference] = []

    def remote(reference: Reference) -> ModelShape:
        asked.append(reference)
        return read_shape(demo_target)

    monkeypatch.setattr("localspec.models.hub.remote_shape", remote)
    outcome = invoke("show", "someone/model-GGUF:Q4_K_M", "--json")
    assert json.loads(outcome.out)["path"] is None
    assert asked == [Reference("someone/model-GGUF", quant="Q4_K_M")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show"], "MODEL"),
        (["show", "none.gguf"], "there is no file none.gguf"),
        (["show", "folder/none.gguf"], "there is no file folder/none.gguf"),
        (["show", "nothing like it"], "no model `nothing like it`"),
        (["show", "none.gguf", "-c", "3"], "too small"),
    ],
)
def test_mistakes(invoke: Invoke, arguments: list[str], words: str) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert not outcome.out
