"""The models of a running server, as a screen that attaches to it sees them."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import cast

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.chat.tool_use.consent import CallAsked, Decision
from localspec.errors import ContextFullError, EngineDied, UserError
from localspec.inference import attached
from localspec.inference.attached import AttachedModels, Server, from_json, to_json
from localspec.inference.interface import ModeChoice, SharedModels
from localspec.inference.runtime import Runtime
from localspec.server.application import AccessPolicy
from localspec.storage.profiles import profiles
from localspec.types.drafts import DraftOrigin as Origin
from localspec.types.drafts import Provenance
from localspec.types.events import (
    Finished,
    GenerationEvent,
    ModeChanged,
    PromptProgress,
    RoundDone,
    RoundStats,
    Summary,
    TextDelta,
    TextPiece,
    ThinkingOpened,
    TokenScore,
    TokensScored,
)
from localspec.types.request import EngineSettings, Message, Request, Sampling, Trigger
from localspec.values import read, tagged
from tests.chat.tool_models import MadeTools, called, kit_of
from tests.inference.runtimes import text_of
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels
from tests.server.turning_models import TurningModels
from tests.waiting import until

QUESTION = (Message("user", "Write a Python function that adds two numbers."),)
GREEDY = Sampling(temperature=0)
TOOL = '{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}'
EVENTS: tuple[GenerationEvent, ...] = (
    PromptProgress(1, 2),
    ThinkingOpened("<think>\n"),
    TextDelta((TextPiece("a\u20ac\n", Provenance.PREPARED), TextPiece("b", Provenance.BONUS))),
    RoundDone(RoundStats(3, 2, Origin.AHEAD, 0.1, 0.2, 0.3, 0.4, copied=1), 3),
    ModeChanged("off", "it was losing"),
    TokensScored((TokenScore(5, b"\xe2\x82", -0.5, ((5, b"\xe2\x82", -0.5),)),)),
    Finished("stop", Summary(tokens=3, accepted_at=(2, 1))),
)


@pytest.fixture
def models(served: Served) -> AttachedModels:
    return AttachedModels(Server(served.url))


def alone(served: Served) -> Runtime:
    models = served.service.queue.models
    assert isinstance(models, Runtime)
    return models


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_the_way(event: GenerationEvent) -> None:
    assert read(GenerationEvent, json.loads(json.dumps(tagged(event)))) == event  # type: ignore[arg-type]


def test_bodies_of_version_0_1_0_are_read() -> None:
    round_done = """{"stats": {"drafted": 3, "accepted": 2, "origin": "ahead", "verify_s": 0.1,
    "draft_s": 0.2, "wait_s": 0.3, "python_s": 0.4, "ahead_s": 0.0, "copied": 1},
    "tokens": 3, "_type": "RoundDone"}"""
    assert read(GenerationEvent, json.loads(round_done)) in EVENTS  # type: ignore[arg-type]
    piece = """{"pieces": [{"text": "a\\u20ac\\n", "provenance": "prepared"},
    {"text": "b", "provenance": "bonus"}], "_type": "TextDelta"}"""
    assert read(GenerationEvent, json.loads(piece)) in EVENTS  # type: ignore[arg-type]
    request = """{"prompt": [{"role": "user", "content": "Hi", "tool_calls": [], "tool_call_id": "",
    "thinking": ""}], "sampling": {"temperature": 0, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "penalty_window": 64},
    "settings": {"mode": "sd", "draft_length": 12, "fan_out_budget": 16, "fan_out_shape": "best-first",
    "draft_temperature": 1.0, "saguaro_c": 1.0, "acceptance": "rejection", "min_confidence": null,
    "fallback": "just-in-time"}, "max_tokens": 5, "stop": ["\\n"], "seed": 7,
    "template_variables": [["enable_thinking", false]], "infill": null, "tools": [], "shows_control": false,
    "steps_down": false, "reuses_cache": true, "grammar": null, "logit_bias": [], "top_logprobs": null,
    "ignores_circles": false}"""
    settings, variables = EngineSettings(mode="sd"), (("enable_thinking", False),)
    expected = Request((Message("user", "Hi"),), GREEDY, settings, 5, ("\n",), 7, variables)
    assert from_json(request, Request) == expected


@pytest.mark.parametrize("prompt", ["bare text", QUESTION])
def test_requests_survive_the_way(prompt: str | tuple[Message, ...]) -> None:
    request = Request(prompt, GREEDY, EngineSettings(mode="sd"), 5, ("\n",), 7, (("enable_thinking", False),))
    assert from_json(to_json(request), Request) == request


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"prompt": "x", "sampling": 3}', '{"max_tokens": 1}', "9" * 999]
)
def test_malformed_requests_are_rejected_by_name(text: str) -> None:
    with pytest.raises(UserError, match="not a Request"):
        from_json(text, Request)


def test_a_client_names_no_files_of_the_server() -> None:
    telling = TellingModels()
    with serving(lambda: telling) as served:
        for name in ("chat1", "../x", None):
            list(AttachedModels(Server(served.url)).generate(Request(QUESTION, GREEDY, kept_as=name)))
    assert [request.kept_as for request in telling.requests] == ["", "", None]


@pytest.mark.parametrize("mode", ["off", "sd", "ssd"])
def test_answers_are_those_of_the_models(served: Served, models: AttachedModels, mode: str) -> None:
    settings = EngineSettings(mode=mode, min_confidence=0.3)  # type: ignore[arg-type]
    request = Request(QUESTION, GREEDY, settings, 32)
    events = list(models.generate(request))
    assert text_of(events) == text_of(list(alone(served).generate(request)))
    last = events[-1]
    assert isinstance(last, Finished)
    assert sum(event.tokens for event in events if isinstance(event, RoundDone)) == last.summary.tokens == 32
    assert (last.summary.drafted > 0) == (mode != "off")


def test_the_models_are_reported_as_they_are(served: Served, models: AttachedModels) -> None:
    there = alone(served)
    assert (models.target, models.draft, models.notes) == (there.target, there.draft, there.notes)
    assert models.count_tokens(QUESTION) == there.count_tokens(QUESTION)
    assert [each.device for each in models.memory()] == [each.device for each in there.memory()]
    settings, reason = models.choose_settings()
    assert settings.mode in there.modes
    assert "tokens/s" in reason
    assert Server(served.url).call("recall", tuple[ModeChoice, ...], "coding") == ()


def test_a_cancelled_answer_ends_with_its_figures() -> None:
    steps = threading.Semaphore(8)
    with serving(lambda: TurningModels(steps=steps)) as there:
        models = AttachedModels(Server(there.url))
        events = models.generate(Request("Once upon a time", GREEDY, EngineSettings(mode="off"), 900))
        before = [next(events) for _ in range(8)]
        models.cancel()
        steps.release()
        last = [*before, *events][-1]
        models.cancel()  # of nothing
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    assert 0 < last.summary.tokens <= 9


def test_an_answer_that_no_one_reads_on_is_dropped(served: Served, models: AttachedModels) -> None:
    events = models.generate(Request("Once upon a time", GREEDY, EngineSettings(mode="off"), 900))
    next(events)
    events.close()
    assert text_of(list(models.generate(Request("One two", GREEDY, EngineSettings(mode="off"), 4))))
    until(lambda: served.service.queue.jobs() == ((), ()))


def test_mistakes_come_back_as_what_they_are(models: AttachedModels, served: Served) -> None:
    with pytest.raises(ContextFullError, match="tokens"):
        list(models.generate(Request("word " * 4000, GREEDY)))
    with pytest.raises(UserError, match="temperature"):
        list(models.generate(Request("word", Sampling(temperature=-1))))
    with pytest.raises(UserError, match="no task"):
        Server(served.url).call("recall", tuple[ModeChoice, ...], "cooking")


def test_a_missing_server_is_reported_with_a_hint() -> None:
    with pytest.raises(UserError, match=r"the server at 127\.0\.0\.1:9 does not answer") as caught:
        AttachedModels(Server("127.0.0.1:9"))
    assert "localspec serve" in caught.value.hint


def test_another_version_is_rejected(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "__version__", "0.0.1")
    with pytest.raises(UserError, match=r"this is 0\.0\.1"):
        AttachedModels(Server(served.url))


class Lent:
    """Models that someone else closes."""

    def __init__(self, models: Runtime) -> None:
        self._models = models

    def __getattr__(self, name: str) -> object:
        return getattr(self._models, name)

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_a_key_is_sent_where_one_is_asked_for(served: Served) -> None:
    with serving(
        lambda: cast(SharedModels, Lent(alone(served))), AccessPolicy(api_key="open sesame")
    ) as closed:
        with pytest.raises(UserError, match="API key"):
            AttachedModels(Server(closed.url, "wrong"))
        assert AttachedModels(Server(closed.url, "open sesame")).target == alone(served).target


def test_a_server_of_another_kind_is_reported(served: Served) -> None:
    with pytest.raises(UserError, match="not a LocalSpec server to attach to"):
        AttachedModels(Server(f"{served.url}/elsewhere"))


def test_a_server_that_ends_is_an_engine_that_died(models: AttachedModels) -> None:
    begun = json.dumps(tagged(PromptProgress(1, 2))).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dying = threading.Thread(target=_die_after, args=(listener, b"data: " + begun + b"\n\n"))
        dying.start()
        models._server = Server(f"127.0.0.1:{listener.getsockname()[1]}")
        events = models.generate(Request("Once", GREEDY))
        assert next(events) == PromptProgress(1, 2)
        with pytest.raises(EngineDied, match="is gone"):
            next(events)
        dying.join(timeout=10)


def _die_after(listener: socket.socket, sent: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(2**16)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + sent)


def test_prompts_and_tokens_are_those_of_the_models(served: Served, models: AttachedModels) -> None:
    asked = Request(QUESTION, GREEDY, tools=(TOOL,), triggers=(Trigger("x(?P<name>y)", ()),))
    assert models.render(asked) == alone(served).render(asked)
    text = "<|im_end|> Ä"
    assert models.tokenize(text) == alone(served).tokenize(text)
    assert models.tokenize(text, special=False) == alone(served).tokenize(text, special=False)
    assert models.tokenize(text, add_special=True) == alone(served).tokenize(text, add_special=True)


def test_tools_run_on_the_machine_of_the_screen_with_consent(tmp_path: Path) -> None:
    writing = TellingModels(texts=[called("change", path="a.txt"), "It is changed."])
    tools = MadeTools({"change": "writes"}, lambda _name, arguments, _stop: f"wrote {arguments['path']}")
    with serving(lambda: writing) as there, Store(None) as store:
        models = AttachedModels(Server(there.url))
        session = ChatSession(store, tuple(profiles(tmp_path)), SessionRequest(), start="new")
        session.shared.make_kit = lambda: kit_of(tools)
        session.update_settings(tools=("made",))
        session.chat.ask("Change it!")
        turn = AnswerTurn(AnswerTurns())
        with turn.taken(models):
            for event in session.answer(models, turn):
                if isinstance(event, CallAsked):
                    assert tools.ran == []
                    assert turn.desk.decide(event.call.id, Decision(is_allowed=True))
        assert session.shared.take_notices() == ()
        said = [message.content for message in session.chat.path]
    assert said == ["Change it!", "", "wrote a.txt", "It is changed."]
    first, second = writing.requests[:2]
    assert [json.loads(tool)["function"]["name"] for tool in first.tools] == ["change"]
    assert first.triggers, "the arguments of a call follow the schema of its tool"
    assert not isinstance(second.prompt, str)
    assert [message.role for message in second.prompt][-2:] == ["assistant", "tool"]


@pytest.mark.parametrize(
    "tool", ["", "{", "[]", "{}", '{"function": 1}', "[" * 9999, '{"function": {"name": 1}}']
)
def test_tools_that_are_none_are_refused(models: AttachedModels, tool: str) -> None:
    with pytest.raises(UserError, match="tools of the request are not functions"):
        next(models.generate(Request(QUESTION, GREEDY, tools=(tool,))))
    assert text_of(list(models.generate(Request(QUESTION, GREEDY, max_tokens=2))))
