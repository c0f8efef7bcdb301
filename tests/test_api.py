"""What `import localspec` offers: its example runs, and nothing heavy is loaded before it is asked for."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import localspec

ROOT = Path(__file__).parent.parent


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(localspec, optionflags=doctest.ELLIPSIS).failed == 0
    assert doctest.DocTestFinder().find(localspec)[0].examples


def test_every_exported_name_is_there() -> None:
    assert {name for name in localspec.__all__ if not hasattr(localspec, name)} == set()
    with pytest.raises(AttributeError, match="no attribute 'Samplings'"):
        localspec.Samplings  # noqa: B018


def test_importing_it_loads_nothing_else() -> None:
    code = "import sys, localspec; print(*(name for name in sys.modules if name.startswith('localspec')))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(result.stdout.split()) == {"localspec", "localspec.version"}


def test_no_answer_waits_for_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object, **__: object) -> None:
        raise AssertionError("it measures")

    monkeypatch.setattr("localspec.inference.contexts.measure", measure)
    modes: tuple[localspec.Mode | None, ...] = (None, "off", "ngram", "sd", "ssd")
    with localspec.open_pair(context=512) as pair:
        for mode in modes:
            assert list(localspec.ask(pair, "Hello!", mode, max_tokens=4))


@pytest.mark.slow
def test_without_a_mode_known_costs_decide_and_a_conversation_continues() -> None:
    said = (
        localspec.Message("user", "Hello!"),
        localspec.Message("assistant", "Hi! What can I do for you?"),
        localspec.Message("user", "Tell me a story."),
    )
    with localspec.open_pair(context=512) as pair:
        events = list(localspec.ask(pair, said, max_tokens=8, seed=1))
    assert isinstance(events[-1], localspec.Finished)
    assert events[-1].summary.prompt_tokens > len("Tell me a story.".split()) * 2
    assert 0 < events[-1].summary.tokens <= 8
    assert any(isinstance(event, localspec.TextDelta) for event in events)


def test_a_target_alone_has_no_draft(tmp_path: Path) -> None:
    from localspec.demo import bundled_pair

    with localspec.open_pair(bundled_pair()[0], context=512) as pair:
        assert pair.draft is None
        with pytest.raises(localspec.UserError, match="needs a draft model"):
            list(localspec.ask(pair, "Hello!", "ssd"))
    with pytest.raises(localspec.UserError, match=r"missing\.gguf"):
        localspec.open_pair(tmp_path / "missing.gguf")
    with pytest.raises(localspec.UserError, match="alone writes nothing"):
        localspec.open_pair(draft=bundled_pair()[1])


def test_a_request_says_how_models_are_opened() -> None:
    named = localspec.ModelRequest("demo-target", threads=1)
    request = localspec.PairRequest(named, context=512, own_head=False, max_fan_out=2)
    with localspec.open_pair(request=request) as pair:
        assert (pair.target.context, pair.draft) == (512, None)
    with localspec.open_pair(draft="demo-draft", context=256, request=request) as pair:
        assert pair.draft is not None
        assert pair.target.context == 256  # what is said apart overrides


def test_nothing_is_downloaded_unasked() -> None:
    there = localspec.PairRequest(localspec.ModelRequest(localspec.Reference("a/b", "Q8_0")))
    with pytest.raises(localspec.UserError, match="a/b:Q8_0 is not on this computer"):
        localspec.open_pair(request=there)
