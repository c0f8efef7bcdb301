"""An answer that calls tools: what is asked, run, saved, sent to the model, and what stops."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.answering import AnswerEvent, AnswerSaved
from localspec.chat.calls.pieces import Piece
from localspec.chat.export import chat_text, parse_all
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.chat.thinking import thinking_of, without_thinking
from localspec.chat.tool_use.answer_tools import AGAIN, ENOUGH, LAST_WORD, NO_MORE, SILENT
from localspec.chat.tool_use.calls_run import STOPPED, CallStarted
from localspec.chat.tool_use.consent import CallAsked, Decision
from localspec.chat.tool_use.described import describe_run, why_failed
from localspec.chat.tool_use.offer import NEXT
from localspec.errors import Cancelled, UserError
from localspec.storage.profiles import profiles
from localspec.tools.results import for_model
from localspec.tools.tool import Arguments, Effect, Tool, ToolOutput
from localspec.types.events import ThinkingOpened
from localspec.types.request import Message, ToolCall
from tests.chat.tool_models import CallingModels, HarmonyModels, MadeTools, OpensThinking, called, kit_of
from tests.scripted import Script, ScriptedModels, Step, says


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(None) as store:
        yield store


def session_of(store: Store, tools: MadeTools, most_rounds: int = 20) -> ChatSession:
    session = ChatSession(store, tuple(profiles(Path("/nowhere"))), SessionRequest(), start="new")
    session.shared.make_kit = lambda: kit_of(tools, most_rounds)
    session.update_settings(tools=("made",))
    return session


def reads(text: str = "a file") -> MadeTools:
    return MadeTools({"look": "reads", "change": "writes", "forbidden": "runs"}, lambda *_: text)


Reaction = Callable[[AnswerEvent, AnswerTurn], object]


def deciding(decision: Decision) -> Reaction:
    """Return a reaction that decides alike about all calls."""

    def react(event: AnswerEvent, turn: AnswerTurn) -> None:
        if isinstance(event, CallAsked):
            assert turn.desk.decide(event.call.id, decision)

    return react


def cancelling(kind: type) -> Reaction:
    """Return a reaction that stops the answer at an event of a kind."""
    return lambda event, turn: turn.cancel() if isinstance(event, kind) else None


def asked(
    session: ChatSession,
    *scripts: Script,
    react: Reaction = lambda _event, _turn: None,
    kind: type[CallingModels] = CallingModels,
) -> tuple[list[AnswerEvent], CallingModels]:
    """Ask something, and return all events of the answer."""
    models, turn = kind(*scripts), AnswerTurn(AnswerTurns())
    session.chat.ask("Look!")
    events: list[AnswerEvent] = []
    with turn.taken(models):
        for event in session.answer(models, turn):
            events.append(event)
            react(event, turn)
    return events, models


def test_a_call_is_run_and_the_answer_goes_on(store: Store) -> None:
    session = session_of(store, tools := reads())
    events, models = asked(session, says("I look.\n", called("look", path="a.txt")), says("It says so."))
    assert tools.ran == [("look", {"path": "a.txt"})]
    _, answer, result, final = session.chat.path
    assert (answer.content.strip(), final.content) == ("I look.", "It says so.")
    (call,) = answer.calls
    assert (call.name, call.arguments) == ("look", '{"path": "a.txt"}')
    assert result.run is not None
    assert (result.role, result.content, result.run.outcome, result.run.because) == (
        "tool", "a file", "done", "the rule reads",
    )  # fmt: skip
    saved = [event.goes_on for event in events if isinstance(event, AnswerSaved)]
    assert saved[:2] == [True, False]
    sent = models.requests[1].prompt[-3:]
    assert sent == (
        Message("user", "Look!"),
        Message("assistant", "I look.", (call,)),
        Message("tool", f"a file\n\n{NEXT}", tool_call_id=call.id),
    )
    assert all(request.tools for request in models.requests)


def test_what_is_kept_is_there_after_a_restart_and_in_exports(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        session = session_of(store, reads("found \x1b[31mred"))
        asked(session, says(called("look", path="ü")), says("Done."))
        path, info = session.chat.path, session.chat.info
        exported = chat_text(store, info, "json")
        written = chat_text(store, info, "md")
    with Store(tmp_path / "chats.db") as store:
        again = ChatSession(store, tuple(profiles(Path("/nowhere"))), SessionRequest())
        assert again.chat.path == path
        assert again.tools_on() == ("made",)
        assert [hit.message for hit in store.search("found")] == [path[2].id]
    ((_, messages, _),) = parse_all(exported)
    assert [(each.role, each.calls, each.run) for each in messages] == [
        (each.role, each.calls, each.run) for each in path
    ]
    assert "look" in written
    assert "found" in written


def test_nothing_that_writes_runs_without_consent(store: Store) -> None:
    session = session_of(store, tools := reads())
    no = Decision(False, word="not this one")
    events, models = asked(session, says(called("change", path="a")), says("Well."), react=deciding(no))
    (seen,) = [event for event in events if isinstance(event, CallAsked)]
    assert (seen.preview, seen.always) == ("would change `a`", "change")
    assert tools.ran == []
    result = session.chat.path[2]
    assert result.content == "This was not run: the user refused it: not this one."
    assert result.run is not None
    assert result.run.outcome == "refused"
    assert models.requests[1].prompt[-1].content.startswith(result.content)  # type: ignore[union-attr]


def test_a_rule_refuses_without_asking(store: Store) -> None:
    session = session_of(store, tools := reads())
    events, _ = asked(session, says(called("forbidden", path="a")), says("Well."))
    assert not [event for event in events if isinstance(event, CallAsked)]
    assert (tools.ran, session.chat.path[2].content) == ([], "This was not run: the rule forbidden.")


def test_a_server_that_is_not_there_is_said(store: Store) -> None:
    session = session_of(store, tools := reads())
    tools.troubles.append("the MCP server `made` ended")
    asked(session, says("Without it."))
    assert session.shared.take_notices() == ("the MCP server `made` ended",)


def test_always_hands_the_rule_on(store: Store) -> None:
    rules: list[str] = []
    session = session_of(store, tools := reads())
    session.shared.make_kit = lambda: replace(kit_of(tools), always=rules.append)
    asked(
        session,
        says(called("change", path="a")),
        says("Well."),
        react=deciding(Decision(True, is_always=True)),
    )
    assert (rules, len(tools.ran)) == (["change"], 1)


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ('<tool_call>\n{"name": "look", "arguments": {"wrong": 1}}\n</tool_call>', "path"),
        ('<tool_call>\n{"name": "look", "arguments": {"path": 5}}\n</tool_call>', "5"),
    ],
)
def test_the_model_hears_what_is_wrong_with_a_call(store: Store, written: str, line: str) -> None:
    session = session_of(store, tools := reads())
    _, models = asked(session, says(written), says(called("look", path="a")), says("Well."))
    result = session.chat.path[2].content
    assert result.startswith("Error: ")
    assert line in result
    assert tools.ran == [("look", {"path": "a"})]
    assert len(models.requests) == 3


def test_a_tool_that_fails_ends_in_a_line(store: Store) -> None:
    def fail(name: str, _arguments: Arguments, _stop: Event) -> ToolOutput:
        raise (
            UserError("there is no file `a`", "list the folder")
            if name == "look"
            else ZeroDivisionError("oh")
        )

    session = session_of(store, MadeTools({"look": "reads", "break": "reads"}, fail))
    asked(session, says(called("look", path="a"), called("break", path="a")), says("Well."))
    first, second = session.chat.path[2:4]
    assert first.content == "there is no file `a`; list the folder"
    assert second.content == "break failed: ZeroDivisionError: oh"
    assert first.run is not None
    assert first.run.outcome == "failed"


def test_reading_calls_run_together_and_writing_ones_alone(store: Store) -> None:
    both = [Event(), Event()]
    running: list[str] = []
    seen: list[list[str]] = []

    def act(name: str, arguments: Arguments, _stop: Event) -> str:
        running.append(name)
        if name == "look":
            number = int(arguments["path"])
            both[number].set()
            assert both[1 - number].wait(10)  # never, if one ran after the other
        seen.append([*running])
        running.remove(name)
        return name

    session = session_of(store, MadeTools({"look": "reads", "change": "writes"}, act))
    calls = [called("look", path="0"), called("look", path="1"), called("change", path="2")]
    asked(session, says("".join(calls)), says("Well."), react=deciding(Decision(True)))
    assert [message.content for message in session.chat.path[2:5]] == ["look", "look", "change"]
    assert seen[-1] == ["change"]


def test_after_the_last_round_the_model_answers_without_tools(store: Store) -> None:
    session = session_of(store, tools := reads(), most_rounds=2)
    asked_again = says(called("look", path="a"))
    _, models = asked(session, asked_again, asked_again, says("Enough."))
    assert [bool(request.tools) for request in models.requests] == [True, True, False]
    assert len(tools.ran) == 2
    assert session.chat.path[-1].content == "Enough."
    told = models.requests[-1].prompt[-1]
    assert isinstance(told, Message)
    assert told.content == f"a file\n{AGAIN}\n\n{ENOUGH}"
    assert ENOUGH not in session.chat.prompt()[-2].content  # for that answer alone


def test_a_call_after_the_last_round_is_no_text_and_is_not_run(store: Store) -> None:
    session = session_of(store, tools := reads(), most_rounds=1)
    events, models = asked(
        session, says(called("look", path="a")), says("I look again.\n", called("look", path="b"))
    )
    assert len(models.requests) == 2
    assert models.requests[1].shows_control  # or its tags would not be seen
    assert tools.ran == [("look", {"path": "a"})]
    answer, result = session.chat.path[-2:]
    assert answer.content.strip() == "I look again."
    assert result.run is not None
    assert describe_run(result.run) == f"look, not run, {NO_MORE}"
    assert [event.goes_on for event in events if isinstance(event, AnswerSaved)][-1] is False
    sent = [message for message in session.chat.prompt() if message.role == "tool"]
    assert len(sent) == 2


@pytest.mark.parametrize(
    ("rounds", "note"), [(20, f"a file\n\n{NEXT}\n\n{SILENT}"), (1, f"a file\n\n{LAST_WORD}")]
)
def test_a_model_that_says_nothing_after_results_is_asked_once_more(
    store: Store, rounds: int, note: str
) -> None:
    session = session_of(store, reads(), most_rounds=rounds)
    silence = says("<think>\nhm\n</think>\n\n")
    events, models = asked(session, says(called("look", path="a")), silence, says("It says so."))
    assert [message.role for message in session.chat.path] == ["user", "assistant", "tool", "assistant"]
    assert without_thinking(session.chat.path[-1].content) == "It says so."
    assert thinking_of(session.chat.path[-1].content) == "hm"
    told = models.requests[-1].prompt[-1]
    assert isinstance(told, Message)
    assert (told.role, told.content) == ("tool", note)
    assert [event.goes_on for event in events if isinstance(event, AnswerSaved)][:3] == [True, True, False]


def test_a_model_that_stays_silent_is_not_asked_a_third_time(store: Store) -> None:
    session = session_of(store, tools := reads())
    look = [says(called("look", path=path)) for path in "ab"]
    _, models = asked(session, look[0], says(""), look[1], says(""), says(""))
    assert [bool(request.tools) for request in models.requests] == [True, True, True, True, False]
    assert [arguments["path"] for _, arguments in tools.ran] == ["a", "b"]
    assert session.chat.path[-1].is_silent


def test_an_answer_that_begins_with_silence_is_asked_for_once_more_without_tools(store: Store) -> None:
    _, models = asked(session := session_of(store, reads()), says(""), says("Hello."))
    assert [bool(request.tools) for request in models.requests] == [True, False]
    assert [message.content for message in session.chat.path] == ["Look!", "Hello."]
    _, models = asked(session, says(""), says(""))
    assert len(models.requests) == 2
    assert session.chat.path[-1].is_silent


@pytest.mark.parametrize("kind", [AnswerSaved, CallStarted])
def test_a_silent_model_can_be_stopped(store: Store, kind: type) -> None:
    session = session_of(store, reads())
    turns = 0

    def react(event: AnswerEvent, turn: AnswerTurn) -> None:
        nonlocal turns
        turns += isinstance(event, kind)
        if turns == (2 if kind is AnswerSaved else 1):
            turn.cancel()

    with suppress(Cancelled):
        asked(session, says(called("look", path="a")), says(""), says("It says so."), react=react)
    assert not [message for message in session.chat.path if message.state == "writing"]


def test_the_same_calls_with_the_same_results_end_soon(store: Store) -> None:
    session = session_of(store, tools := reads())
    session.shared.make_kit = lambda: replace(kit_of(tools), present=for_model)
    again = says(called("look", path="a"))
    _, models = asked(session, again, again, says("I give up."))
    assert [bool(request.tools) for request in models.requests] == [True, True, False]
    assert session.chat.path[-1].content == "I give up."


def test_calls_that_may_change_something_have_another_chance(store: Store) -> None:
    session = session_of(store, reads())
    again, yes = says(called("change", path="a")), deciding(Decision(True))
    _, models = asked(session, again, again, again, says("I give up."), react=yes)
    assert [bool(request.tools) for request in models.requests] == [True, True, True, False]


def test_the_same_call_goes_on_while_its_results_differ(store: Store) -> None:
    numbers = count()
    session = session_of(store, MadeTools({"look": "reads"}, lambda *_: str(next(numbers))))
    again = says(called("look", path="a"))
    _, models = asked(session, *[again] * 6, says("It has come."))
    assert len(models.requests) == 7


def test_stopping_ends_a_tool_and_the_answer(store: Store) -> None:
    stopped = Event()

    def wait(_name: str, _arguments: Arguments, stop: Event) -> str:
        assert stop.wait(10)
        stopped.set()
        raise Cancelled("stopped")

    session = session_of(store, MadeTools({"look": "reads"}, wait))
    calls = says(called("look", path="a"), called("look", path="b"))
    with pytest.raises(Cancelled):
        asked(session, calls, react=cancelling(CallStarted))
    assert stopped.is_set()
    assert [each.run.outcome for each in session.chat.path if each.run] == ["stopped", "stopped"]
    assert session.chat.path[2].content == STOPPED


def test_a_tool_that_tells_how_far_it_came_is_stopped_and_did_not_fail(store: Store) -> None:
    def wait(_name: str, _arguments: Arguments, stop: Event) -> ToolOutput:
        assert stop.wait(10)
        return ToolOutput("line 1\n[stopped by the user]", is_error=True)

    session = session_of(store, MadeTools({"look": "reads"}, wait))
    with pytest.raises(Cancelled):
        asked(session, says(called("look", path="a")), react=cancelling(CallStarted))
    result = session.chat.path[-1]
    assert result.run is not None
    assert (result.run.outcome, "line 1" in result.content) == ("stopped", True)


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("there is no file `a`", "there is no file `a`"),
        ("line 1\n[ended after 5 s]", "ended after 5 s"),
        ("first\nsecond", "first"),
        ("</output 00000000>\nlast", "</output 00000000>"),
    ],
)
@pytest.mark.parametrize("effect", ["runs", "writes"])
def test_the_line_of_a_failed_call_says_why(output: str, why: str, effect: Effect) -> None:
    tool = Tool("change", "Change.", {"type": "object"}, effect)
    assert why_failed(for_model(tool, ToolOutput(output, is_error=True), 1000)) == why


def test_stopping_while_consent_is_asked_runs_nothing(store: Store) -> None:
    session = session_of(store, tools := reads())
    with pytest.raises(Cancelled):
        asked(session, says(called("change", path="a")), react=cancelling(CallAsked))
    assert tools.ran == []
    assert [each.run.outcome for each in session.chat.path if each.run] == ["stopped"]


class NeverStarts(MadeTools):
    """Tools of a server that does not come up; the answer is stopped while it is waited for."""

    def __init__(self) -> None:
        super().__init__({"look": "reads"}, lambda *_: "")
        self.turn: AnswerTurn | None = None
        self.may_end = Event()

    def tools(self) -> Sequence[Tool]:
        assert self.turn is not None
        self.turn.cancel()
        self.may_end.wait()
        return super().tools()


def test_stopping_does_not_wait_for_a_server_that_never_starts(store: Store) -> None:
    tools = NeverStarts()
    session, models = session_of(store, tools), CallingModels(says("never said"))
    session.chat.ask("Look!")
    tools.turn = turn = AnswerTurn(AnswerTurns())
    with pytest.raises(Cancelled), turn.taken(models):
        list(session.answer(models, turn))
    tools.may_end.set()
    assert models.requests == []
    assert session.chat.path[-1].content == "Look!"


def test_another_answer_to_the_same_results(store: Store) -> None:
    session = session_of(store, tools := reads())
    asked(session, says(called("look", path="a")), says("First."))
    result = session.chat.path[2]
    session.chat.back_to(result.id)
    models, turn = CallingModels(says("Second.")), AnswerTurn(AnswerTurns())
    with turn.taken(models):
        list(session.answer(models, turn))
    assert [message.content for message in session.chat.path[2:]] == ["a file", "Second."]
    assert (len(tools.ran), session.chat.shown()[-1].branches) == (1, 2)


def test_a_call_without_its_result_is_not_sent(store: Store) -> None:
    session = session_of(store, reads())
    session.chat.ask("Look!")
    answer = session.chat.add(session.chat.path[-1].id, "assistant", "I look.")
    session.chat.write(answer.id, "I look.", "stopped", calls=[ToolCall("1", "look", "{}")])
    session.chat.ask("And?")
    assert session.chat.prompt()[-2:] == (Message("assistant", "I look."), Message("user", "And?"))


def test_thinking_before_a_call_is_sent_while_the_answer_goes_on(store: Store) -> None:
    session = session_of(store, reads())
    thinks = says("<think>\nA file, I guess.\n</think>\n\n", called("look", path="a"))
    _, models = asked(session, thinks, says("Well."))
    assert session.chat.path[1].content.strip() == "<think>\nA file, I guess.\n</think>"
    assert [m.thinking for m in models.requests[1].prompt if isinstance(m, Message)][-2:] == [
        "A file, I guess.",
        "",
    ]
    session.chat.ask("And?")
    assert not any(message.thinking for message in session.chat.prompt())


HARMONY_CALL = (
    "<|channel|>analysis<|message|>A file, I guess.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"path": "a"}<|call|>'
)
OPENED = ThinkingOpened("<think>\n")


@pytest.mark.parametrize(
    ("kind", "calls", "final"),
    [
        (HarmonyModels, says(HARMONY_CALL), says("<|channel|>final<|message|>It says so.")),
        (
            OpensThinking,
            says(OPENED, "A file, I guess.\n</think>\n\n", called("look", path="a")),
            says(OPENED, "Seven.\n</think>\n\nIt says so."),
        ),
    ],
)
def test_the_loop_with_other_templates(
    store: Store, kind: type[CallingModels], calls: Script, final: Script
) -> None:
    session = session_of(store, tools := reads("holds 7"))
    _, models = asked(session, calls, final, kind=kind)
    assert tools.ran == [("look", {"path": "a"})]
    _, answer, result, last = session.chat.path
    assert (answer.calls[0].name, answer.calls[0].arguments) == ("look", '{"path": "a"}')
    assert result.content == "holds 7"
    assert thinking_of(answer.content).strip() == "A file, I guess."
    assert not without_thinking(answer.content).strip()
    assert without_thinking(last.content).strip() == "It says so."
    sent = [message for message in models.requests[1].prompt if isinstance(message, Message)]
    assert [message.thinking for message in sent if message.role == "assistant"] == ["A file, I guess."]


def test_models_that_cannot_call_answer_without_tools(store: Store) -> None:
    session = session_of(store, reads())
    models, turn = ScriptedModels(says("Plain.")), AnswerTurn(AnswerTurns())
    session.chat.ask("Look!")
    with turn.taken(models):
        list(session.answer(models, turn))
    assert session.chat.path[-1].content == "Plain."
    assert session.shared.take_notices()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_events_run_nothing_without_consent_and_lose_nothing(seed: int) -> None:
    """500 random steps a seed: calls good and bad, consents, refusals, stops, deaths of tools."""
    rng = random.Random(seed)
    allowed: set[str] = set()
    for _ in range(25):
        with Store(None) as store:
            _one_random_answer(store, rng, allowed)


def _one_random_answer(store: Store, rng: random.Random, allowed: set[str]) -> None:
    def act(name: str, arguments: Arguments, _stop: Event) -> str | ToolOutput:
        key = f"{name}:{arguments['path']}"
        assert name == "look" or key in allowed, f"{key} ran without consent"
        match rng.randrange(5):
            case 0:
                raise UserError("no", "no")
            case 1:
                raise RuntimeError("died")
            case 2:
                return ToolOutput("bad", is_error=True)
        return f"result of {key}"

    def react(event: AnswerEvent, turn: AnswerTurn) -> None:
        if rng.random() < 0.02:
            turn.cancel()
        elif isinstance(event, CallAsked):
            decision = Decision(rng.random() < 0.5)
            assert not turn.desk.decide("another", decision)
            if decision.is_allowed:
                allowed.add(f"{event.call.name}:{json.loads(event.call.arguments)['path']}")
            assert turn.desk.decide(event.call.id, decision)

    effects: dict[str, Effect] = {"look": "reads", "change": "writes", "run": "runs", "forbidden": "runs"}
    session = session_of(store, MadeTools(effects, act), most_rounds=3)
    with suppress(Cancelled):
        asked(session, *[_random_answer(rng) for _ in range(4)], says("The end."), react=react)
    path = session.chat.path
    results = [message for message in path if message.run is not None]
    calls = [call for each in path if each.state == "complete" for call in each.calls]
    assert [each.run.call for each in results if each.run] == calls[: len(results)]
    assert len(results) == len(calls) or path[-1].calls  # a stop came first
    sent = [message for message in session.chat.prompt() if message.role == "tool"]
    assert [message.content for message in sent] == [message.content for message in results]


def _random_answer(rng: random.Random) -> Script:
    names = ("look", "change", "run", "forbidden", "unknown")
    parts = ["Some text. "] * rng.randrange(2)
    for _ in range(rng.randrange(4)):
        path = str(rng.randrange(1000))
        good = called(rng.choice(names), path=path)
        bad = called("look", path=5), good[: rng.randrange(5, len(good))]
        parts.append(rng.choice((good, good, *bad, shown(rng.choice(names), path=path))))
    return says(*parts) if parts else says("Nothing.")


def shown(name: str, /, **arguments: object) -> str:
    """Return an answer that shows a call in a block of code."""
    call = json.dumps({"name": name, "arguments": arguments}, indent=2)
    return f"Use this call:\n\n```json\n{call}\n```\n\nIt changes the file.\n"


LOOK, SHOWN = called("look", path="a"), shown("change", path="a")


@pytest.mark.parametrize("kind", [CallingModels, HarmonyModels, OpensThinking])
def test_after_results_a_call_in_a_block_of_code_is_one(store: Store, kind: type[CallingModels]) -> None:
    opened: list[Step] = [OPENED, "Hm.\n</think>\n\n"] if kind is OpensThinking else []
    look = [HARMONY_CALL] if kind is HarmonyModels else [*opened, LOOK]
    final = "<|channel|>final<|message|>" if kind is HarmonyModels else ""
    session, yes = session_of(store, tools := reads()), deciding(Decision(True))
    scripts = says(*look), says(*opened, final + SHOWN), says(*opened, f"{final}Done.")
    events, models = asked(session, *scripts, react=yes, kind=kind)
    assert tools.ran == [("look", {"path": "a"}), ("change", {"path": "a"})]
    assert [event.call.name for event in events if isinstance(event, CallAsked)] == ["change"]
    answer = session.chat.path[3]
    assert without_thinking(answer.content).strip() == SHOWN.strip()
    assert [call.name for call in answer.calls] == ["change"]
    assert len(models.requests) == 3


@pytest.mark.parametrize(
    "scripts",
    [
        (says(SHOWN),),
        (says(LOOK), says(shown("look", path="a"))),
        (says(LOOK), says(SHOWN, shown("change", path="b"))),
        (says(LOOK), says(shown("another", path="a"))),
        (says(LOOK), says('```json\n{"name": "Ann"}\n```')),
        (says(LOOK), says(SHOWN, reason="length")),
        (says(called("forbidden", path="a")), says(SHOWN)),
    ],
    ids=["first", "made before", "two", "no tool", "data", "cut", "refused before"],
)
def test_other_blocks_of_code_are_text(store: Store, scripts: Sequence[Script]) -> None:
    session, tools = session_of(store, reads()), reads()
    session.shared.make_kit = lambda: kit_of(tools)
    _, models = asked(session, *scripts, react=deciding(Decision(True)))
    assert len(models.requests) == len(scripts)
    assert session.chat.path[-1].content.strip()
    assert "change" not in [name for name, _ in tools.ran]


def test_a_call_in_a_block_of_code_is_one_in_later_answers(store: Store) -> None:
    session, yes = session_of(store, tools := reads()), deciding(Decision(True))
    asked(session, says(LOOK), says("It says so."))
    for _ in range(2):  # what an earlier answer did may be done again
        _, models = asked(session, says(SHOWN), says("Done."), react=yes)
        assert len(models.requests) == 2
    assert [name for name, _ in tools.ran] == ["look", "change", "change"]


def test_a_call_in_a_block_of_code_is_text_in_the_last_round(store: Store) -> None:
    session = session_of(store, tools := reads(), most_rounds=1)
    _, models = asked(session, says(LOOK), says(SHOWN))
    assert len(models.requests) == 2
    assert [name for name, _ in tools.ran] == ["look"]
    assert (session.chat.path[-1].content.strip(), session.chat.path[-1].calls) == (SHOWN.strip(), ())


def test_a_call_in_a_block_of_code_can_be_refused_and_stopped(store: Store) -> None:
    session = session_of(store, tools := reads())
    no = deciding(Decision(False))
    _, models = asked(session, says(LOOK), says(SHOWN), says("Then not."), react=no)
    assert len(models.requests) == 3
    with pytest.raises(Cancelled):
        asked(session, says(LOOK), says(SHOWN), react=cancelling(CallAsked))
    assert [name for name, _ in tools.ran] == ["look", "look"]
    assert session.chat.path[-1].run is not None
    assert session.chat.path[-1].run.outcome == "stopped"


def test_the_pieces_of_a_call_are_told_as_they_come(store: Store) -> None:
    session = session_of(store, reads())
    events, _ = asked(session, says(called("look", path="a.txt")), says("Well."))
    pieces = [event for event in events if isinstance(event, Piece)]
    assert pieces[0].name == "look"
    assert "".join(piece.text for piece in pieces) == '{"path": "a.txt"}'


def test_a_call_that_is_made_again_with_the_same_result_is_said_to_be(store: Store) -> None:
    session = session_of(store, tools := reads())
    look, other = called("look", path="a"), called("look", path="b")
    asked(session, says(look), says(other), says(look), says("Done."))
    results = [message.content for message in session.chat.path if message.role == "tool"]
    assert results == ["a file", "a file", f"a file\n{AGAIN}"]
    assert len(tools.ran) == 3
