from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.cli import chat
from localspec.errors import ContextFullError, EngineError
from localspec.storage.paths import chats_file, config_dir
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, GenerationEvent, TextDelta, TextPiece
from localspec.types.request import Request
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import SUMMARY, FakeRuntime, model_info, says
from tests.scripted import TIMEOUT_S


def prompts(fake: FakeRuntime) -> list[list[str]]:
    """Return the contents of the messages of each request."""
    return [
        [message.content for message in request.prompt if not isinstance(message, str)]
        for request in fake.requests
    ]


def test_a_piped_chat_prints_answers_only(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("one"), says("two")]
    outcome = invoke("chat", "--plain", piped=b"first\nsecond\n")
    assert (outcome.code, outcome.out) == (0, "one\ntwo\n")
    assert outcome.err == "big with draft small; mode sd: measured. /help lists the commands.\n"
    assert prompts(fake) == [["first"], ["first", "one", "second"]]
    assert fake.closed


def test_the_system_prompt_and_flags_reach_every_turn(fake: FakeRuntime, invoke: Invoke) -> None:
    invoke("chat", "-sys", "Be brief.", "--temp", "0", "-n", "4", "-s", "9", piped=b"a\nb\n")
    assert [turn[0] for turn in prompts(fake)] == ["Be brief.", "Be brief."]
    assert [request.sampling.temperature for request in fake.requests] == [0, 0]
    assert [request.max_tokens for request in fake.requests] == [4, 4]
    assert [request.seed for request in fake.requests] == [9, 10]


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("one \\\ntwo\\\nthree\n", "one \ntwo\nthree"),
        ("ends with\\\n", "ends with\n"),
        ('"""\none\n\ntwo\n"""\n', "one\n\ntwo"),
        ('"""one\ntwo"""\n', "one\ntwo"),
        ('"""one"""\n', "one"),
        ('"""\n/exit\n"""\n', "/exit"),
        ('"""never closed\n', "never closed"),
        (" /exit is a word\n", "/exit is a word"),
    ],
)
def test_input_of_several_lines(fake: FakeRuntime, invoke: Invoke, typed: str, asked: str) -> None:
    assert invoke("chat", piped=typed.encode()).code == 0
    assert prompts(fake) == [[asked.strip("\n")]]


def test_empty_lines_are_not_questions(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("chat", piped=b"\n  \n").code == 0
    assert fake.requests == []


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("// first line", "// first line"),
        ("//TODO mend", "//TODO mend"),
        ("/* comment */", "/* comment */"),
        ("/home/me/scripts can these be deleted?", "/home/me/scripts can these be deleted?"),
        (" / a", " / a"),
        ("//undo", "/undo"),
        (" /help", "/help"),
        (" /tmp does not exist", "/tmp does not exist"),
        ('"""\n /help\n"""', " /help"),
    ],
)
def test_what_is_not_a_command_is_asked_as_on_the_screen(
    fake: FakeRuntime, invoke: Invoke, line: str, asked: str
) -> None:
    assert invoke("chat", piped=f"{line}\n".encode()).code == 0
    assert prompts(fake) == [[asked]]


def test_commands_are_written_as_on_the_screen(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says(word) for word in ("1", "2", "3")]
    invoke("chat", piped=b"a\n/UNDO\nb\n/Regen off\n/QUIT\nc\n")
    assert prompts(fake) == [["a"], ["b"], ["b"]]
    assert fake.requests[-1].settings.mode == "off"


def test_regenerate_undo_and_clear(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says(word) for word in ("1", "2", "2b", "3", "4")]
    invoke("chat", piped=b"a\nb\n/regen\n/undo\nc\n/clear\nd\n")
    assert prompts(fake) == [["a"], ["a", "1", "b"], ["a", "1", "b"], ["a", "1", "c"], ["d"]]


def test_system_prompt_and_temperature_change(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("chat", piped=b"/system Be kind.\n/temp 0.3\na\n/system -\n/clear\nb\n/system\n/temp\n")
    assert prompts(fake) == [["Be kind.", "a"], ["b"]]
    assert fake.requests[0].sampling.temperature == 0.3
    assert outcome.err.endswith("system prompt: none\ntemperature 0.3\n")


def test_a_budget_for_thinking(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("chat", "--reasoning-budget", "99", piped=b"a\n/thinking 20\nb\n/thinking\n")
    assert [request.thinking_budget for request in fake.requests] == [99, 20]
    assert outcome.err.count("thinking takes at most 20 tokens\n") == 2


@pytest.mark.parametrize(
    ("mode", "answer"),
    [("off", "off: asked for"), ("ssd", "ssd: asked for"), ("auto", "sd: measured"), ("", "sd: measured")],
)
def test_mode(fake: FakeRuntime, invoke: Invoke, mode: str, answer: str) -> None:
    outcome = invoke("chat", piped=f"/mode {mode}\na\n".encode())
    assert f"\nmode {answer}\n" in outcome.err
    assert fake.requests[0].settings.mode == answer.split(":", maxsplit=1)[0]


def test_stats_show_the_last_answer_and_switch_the_line(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.draft = None
    outcome = invoke("chat", "-m", "big.gguf", piped=b"a\n/stats\nb\n/stats\nc\n")
    assert outcome.err.count("accepted length") == 2
    assert outcome.err.count("[SD  6.0 tokens/s  80% accepted (8 of 10)  3.0 tokens/round  75% prepared") == 1
    assert outcome.out == "Hello\nHello\nHello\n"


@pytest.mark.usefixtures("fake")
def test_stats_tell_the_mode_of_the_answer_not_of_the_next_one(invoke: Invoke) -> None:
    outcome = invoke("chat", piped=b"a\n/mode off\n/stats\n")
    assert "mode             speculative (measured)\n" in outcome.err


@pytest.mark.usefixtures("fake")
def test_help_lists_every_command(invoke: Invoke) -> None:
    text = invoke("chat", piped=b"/help\n").err
    commands = ("mode", "stats", "help", "regen", "undo", "clear", "system", "temp", "color", "exit")
    assert [name for name in commands if f"/{name}" not in text] == []


@pytest.mark.parametrize("leave", ["/exit", "/quit"])
def test_exit_leaves_at_once(fake: FakeRuntime, invoke: Invoke, leave: str) -> None:
    assert invoke("chat", piped=f"{leave}\nnever asked\n".encode()).code == 0
    assert fake.requests == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/mdoe", "did you mean `/mode`?"),
        ("/xyzzy", "there is no command `/xyzzy`"),
        ("/mode fast", "there is no mode `fast`"),
        ("/temp hot", "`hot` is not a temperature"),
        ("/undo", "nothing to undo"),
        ("/regen", "no answer to regenerate"),
        ("/mode ssd", "needs a draft model"),
        ("/regen ssd", "needs a draft model"),
        ("/clear the table", "nothing can follow /clear"),
        ("/exit the program", "nothing can follow /exit"),
        ("/", "there is no command `/`"),
    ],
)
def test_a_mistake_stops_a_script_but_not_a_user(
    fake: FakeRuntime, invoke: Invoke, line: str, complaint: str
) -> None:
    fake.draft = None
    piped = invoke("chat", "-m", "x.gguf", piped=f"{line}\na\n".encode())
    assert (piped.code, piped.out) == (2, "")
    assert complaint in piped.err
    typed = invoke("chat", "-m", "x.gguf", typed=f"{line}\na\n")
    assert typed.code == 0
    assert complaint in typed.err
    assert len(fake.requests) == 1


def test_bad_bytes_name_their_offset_in_the_whole_input(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("chat", piped=b"one\ntwo \xff\n")
    assert outcome.code == 2
    assert "byte 0xff at offset 8" in outcome.err
    assert len(fake.requests) == 1


def test_a_failing_turn_is_taken_back_and_the_chat_continues(fake: FakeRuntime, invoke: Invoke) -> None:
    def too_long(_request: Request) -> Iterator[GenerationEvent]:
        raise ContextFullError("the conversation is 40 tokens too long", "raise -c")

    def broken(_request: Request) -> Iterator[GenerationEvent]:
        raise EngineError("the device is gone")

    fake.scripts = [says("1"), too_long, broken, says("2")]
    outcome = invoke("chat", typed="a\nb\nc\nd\n")
    assert outcome.code == 0
    assert "40 tokens too long\n  hint: /compact summarises older messages, /undo takes back" in outcome.err
    assert "error: the device is gone" in outcome.err
    assert prompts(fake)[-1] == ["a", "1", "d"]


def test_a_first_question_that_is_too_long_keeps_its_own_hint(fake: FakeRuntime, invoke: Invoke) -> None:
    def too_long(_request: Request) -> Iterator[GenerationEvent]:
        raise ContextFullError("too long", "raise -c")

    fake.scripts = [too_long]
    assert "hint: raise -c" in invoke("chat", typed="a\n").err


def test_a_full_context_is_reported_with_what_to_do(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("cut", reason="context")]
    outcome = invoke("chat", piped=b"a\n")
    assert "the context of 512 tokens is full: /compact" in outcome.err


def test_older_messages_are_summarised_and_that_is_taken_back(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says(word) for word in ("1", "2", "3", "4", "In short.", "5", "6")]
    outcome = invoke("chat", piped=b"a\nb\nc\nd\n/compact\ne\n/compact undo\nf\n")
    assert "summarising 4 messages" in outcome.err
    assert "4 messages summarised: 4 tokens became 2" in outcome.err
    asked = "Summarise our conversation so far."
    assert prompts(fake)[-2] == [asked, "In short.", "c", "3", "d", "4", "e"]
    assert prompts(fake)[-1] == ["a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f"]
    assert outcome.out == "1\n2\n3\n4\n5\n6\n"


def test_a_chat_that_is_nearly_full_says_so(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.target = replace(fake.target, context=8)
    fake.scripts = [says(word) for word in ("1", "2", "3", "4")]
    questions = b"a\nb\nc\nd\n"
    assert (
        "note: the context is nearly full; /compact summarises 4 messages"
        in invoke("chat", piped=questions).err
    )
    (config_dir() / "config.toml").write_text('[chat]\ncompact = "off"\n', encoding="utf-8")
    fake.scripts = [says(word) for word in ("1", "2", "3", "4")]
    assert "nearly full" not in invoke("chat", piped=questions).err


def interrupted(fake: FakeRuntime) -> None:
    def script(_request: Request) -> Iterator[GenerationEvent]:
        yield TextDelta((TextPiece("half", Provenance.TARGET),))
        os.kill(os.getpid(), signal.SIGINT)
        assert fake.cancelled.wait(timeout=20)
        yield Finished("cancelled", SUMMARY)

    fake.scripts = [script, says("whole")]


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(fake: FakeRuntime, invoke: Invoke) -> None:
    interrupted(fake)
    outcome = invoke("chat", typed="a\nb\n")
    assert outcome.code == 0
    assert prompts(fake) == [["a"], ["a", "half", "b"]]


def test_ctrl_c_ends_a_piped_chat(fake: FakeRuntime, invoke: Invoke) -> None:
    interrupted(fake)
    outcome = invoke("chat", piped=b"a\nb\n")
    assert (outcome.code, outcome.out) == (130, "half\n")
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("keys", "answers"),
    [
        (["^C", "^C", "never"], 0),
        (["^C", "a", "^C", "b", "^D"], 2),
        (["a", "^D"], 1),
        (["on \\", "^C", "a", "^D"], 1),
        (['"""', "^C", "a", "^D"], 1),
    ],
)
def test_ctrl_c_at_the_prompt_leaves_the_second_time(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, keys: list[str], answers: int
) -> None:
    def typed(_prompt: str) -> str:
        key = keys.pop(0)
        if key == "^C":
            raise KeyboardInterrupt
        if key == "^D":
            raise EOFError
        return key

    monkeypatch.setattr(chat, "input", typed, raising=False)
    outcome = invoke("chat", typed="")
    assert outcome.code == 0
    assert len(fake.requests) == answers


def test_a_prompt_never_mixes_with_answers_in_a_file(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("chat", typed="a\n")
    assert outcome.out == "Hello\n"
    assert "> " in outcome.err
    assert len(fake.requests) == 1


def test_color_can_be_switched_unless_no_color_is_set(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.scripts = [says("t", "a")]
    assert invoke("chat", piped=b"/color\nx\n/color\nx\n").out == "t\x1b[32ma\x1b[0m\nta\n"
    monkeypatch.setattr("localspec.cli.shared.console.os", SimpleNamespace(environ={"NO_COLOR": "1"}))
    outcome = invoke("chat", typed="/color\nx\n")
    assert outcome.out == "ta\n"
    assert "NO_COLOR is set" in outcome.err


def test_one_line_at_the_start_without_a_draft(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.draft, fake.target, fake.notes = None, model_info("solo"), ("it cannot rewind",)
    outcome = invoke("chat", "-m", "solo.gguf", "--mode", "ngram")
    assert outcome.err.splitlines() == [
        "note: it cannot rewind",
        "solo; mode ngram: asked for. /help lists the commands.",
    ]


def test_a_chat_is_not_one_json_object(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("chat", "--plain", "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--json cannot be used in a chat" in outcome.err
    assert fake.opened == []


def kept(title: str) -> list[tuple[str, str]]:
    """Return the shown branch of the one kept chat with this title, as roles and texts."""
    with Store(chats_file()) as store:
        [chat] = [chat for chat in store.chats() if chat.title == title]
        return [(message.role, message.content) for message in OpenChat(store, chat.id).path]


def test_what_is_typed_is_kept_and_listed(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("one"), says("two")]
    assert "not kept" not in invoke("chat", typed="first\nsecond\n").err
    assert kept("first") == [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
        ("assistant", "two"),
    ]
    listed = invoke("history")
    assert "4 messages  first\n" in listed.out


@pytest.mark.slow
def test_text_of_an_answer_is_saved_while_the_models_pause(fake: FakeRuntime, invoke: Invoke) -> None:
    def pauses(_request: Request) -> Iterator[GenerationEvent]:
        yield TextDelta((TextPiece("half an ", Provenance.TARGET),))
        deadline = time.monotonic() + TIMEOUT_S
        while kept("first")[-1] != ("assistant", "half an "):
            assert time.monotonic() < deadline, "nobody saves it"
        yield TextDelta((TextPiece("answer", Provenance.TARGET),))
        yield Finished("stop", SUMMARY)

    fake.scripts = [pauses]
    assert invoke("chat", typed="first\n").out == "half an answer\n"
    assert kept("first")[-1] == ("assistant", "half an answer")


def test_a_kept_answer_says_how_it_was_written(fake: FakeRuntime, invoke: Invoke) -> None:
    invoke("chat", "--profile", "coding", "-s", "9", typed="Hi\n")
    with Store(chats_file()) as store:
        [chat] = store.chats()
        record = OpenChat(store, chat.id).record(store.messages(chat.id)[-1].id)
    assert record is not None
    assert (chat.profile, record.profile, record.seed) == ("coding", "coding", 9)
    assert (record.target, record.draft, record.summary) == (fake.target.name, "small", SUMMARY)


@pytest.mark.usefixtures("fake")
def test_what_is_piped_in_is_not_kept(invoke: Invoke) -> None:
    assert invoke("chat", piped=b"first\n").code == 0
    assert not chats_file().exists()


def test_a_chat_in_lines_is_not_the_one_to_resume_and_one_without_a_word_leaves_nothing(
    fake: FakeRuntime, invoke: Invoke
) -> None:
    with Store(chats_file()) as store:
        open_last = store.new_chat("on the screen").id
        store.add(open_last, None, "user", "hello")
        store.remember_chat(open_last)
    invoke("chat", typed="")
    invoke("chat", typed="in lines\n")
    with Store(chats_file()) as store:
        assert store.last_chat() == open_last
        assert {chat.title for chat in store.chats()} == {"on the screen", "in lines"}
    assert len(fake.requests) == 1


def test_what_was_taken_back_or_written_again_stays_as_a_branch(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says(word) for word in ("1", "2", "2b", "3")]
    invoke("chat", typed="a\nb\n/regen\n/undo\nc\n")
    assert kept("a") == [("user", "a"), ("assistant", "1"), ("user", "c"), ("assistant", "3")]
    with Store(chats_file()) as store:
        [chat] = store.chats()
        texts = [message.content for message in store.messages(chat.id)]
    assert texts == ["a", "1", "b", "2", "2b", "c", "3"]


def test_clear_begins_a_chat_of_its_own_under_the_same_system_prompt(
    fake: FakeRuntime, invoke: Invoke
) -> None:
    fake.scripts = [says("1"), says("2")]
    invoke("chat", typed="/system Be kind.\na\n/clear\nb\n")
    assert prompts(fake) == [["Be kind.", "a"], ["Be kind.", "b"]]
    assert kept("a") == [("user", "a"), ("assistant", "1")]
    assert kept("b") == [("user", "b"), ("assistant", "2")]


def test_undoing_the_only_turn_starts_over(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("chat", typed="/system Be kind.\na\n/undo\n/system\nb\n/undo\n/undo\n")
    assert prompts(fake) == [["Be kind.", "a"], ["Be kind.", "b"]]
    assert outcome.err.count("taken back; questions left: 0") == 2
    assert "nothing to undo" in outcome.err


def test_a_stopped_answer_is_kept_as_far_as_it_came(fake: FakeRuntime, invoke: Invoke) -> None:
    interrupted(fake)
    invoke("chat", typed="a\n")
    assert kept("a") == [("user", "a"), ("assistant", "half")]


def test_a_store_that_does_not_open_is_reported_once_and_the_chat_continues(
    fake: FakeRuntime, invoke: Invoke
) -> None:
    chats_file().write_bytes(b"no database at all, and long enough to be read as one" * 40)
    fake.scripts = [says("1"), says("2")]
    outcome = invoke("chat", typed="a\nb\n")
    assert (outcome.code, outcome.out) == (0, "1\n2\n")
    assert outcome.err.count("note: this chat is not saved: the chats in `") == 1
    assert prompts(fake) == [["a"], ["a", "1", "b"]]


def test_thinking_does_not_go_back_to_the_model(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("<think>", "hm", "</think>", "one"), says("two")]
    assert invoke("chat", piped=b"a\nb\n").out == "one\ntwo\n"
    assert prompts(fake)[1] == ["a", "one", "b"]


def test_a_file_that_a_line_names_is_attached(
    fake: FakeRuntime, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main.py").write_text("1\n2\n3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    outcome = invoke("chat", typed="看@main.py:2。\nme@main.py\n@mian.py\n")
    assert prompts(fake) == [
        ["File main.py:2:\n```\n2\n```\n\n看@main.py:2。"],
        ["File main.py:2:\n```\n2\n```\n\n看@main.py:2。", "Hello", "me@main.py"],
    ]
    assert "attached main.py:2, 2 bytes\n" in outcome.err
    assert "note: @main.py is not attached: the @ is part of an address" in outcome.err
    assert "there is no file `mian.py`" in outcome.err


def test_a_line_that_begins_with_a_dropped_path_attaches_it(
    fake: FakeRuntime, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my notes.txt").write_text("milk\n")
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    dropped = f"'{tmp_path}/my notes.txt' sum up\n{tmp_path}/my\\ notes.txt\nwhat is {tmp_path}/src for?\n"
    outcome = invoke("chat", typed=dropped)
    asked = [each[-1] for each in prompts(fake)]
    assert asked == [
        'File my notes.txt:\n```\nmilk\n```\n\n@"my notes.txt" sum up',
        'File my notes.txt:\n```\nmilk\n```\n\n@"my notes.txt"',
        f"what is {tmp_path}/src for?",
    ]
    assert outcome.err.count("attached my notes.txt, 5 bytes\n") == 2


@pytest.fixture
def own_commands() -> None:
    folder = config_dir() / "commands"
    folder.mkdir()
    (folder / "über.md").write_text("---\ndescription: Sum up\n---\nSum up: $ARGUMENTS", encoding="utf-8")
    (folder / "undo.md").write_text("never sent", encoding="utf-8")
    (folder / "lines.md").write_text("one\ntwo", encoding="utf-8")
    (folder / "empty.md").write_text("\n", encoding="utf-8")


@pytest.mark.usefixtures("own_commands")
def test_commands_of_ones_own_are_known_line_by_line(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("chat", piped="/über  this text \n/undo\n/LINES\n/undo\n/help\n".encode())
    assert (outcome.code, prompts(fake)) == (0, [["Sum up: this text"], ["one\ntwo"]])
    assert "/über [TEXT]       Sum up\n" in outcome.err
    assert "/lines [TEXT]      one\n" in outcome.err
    assert outcome.err.count("note: commands/empty.md is not used: ") == 1


@pytest.mark.usefixtures("own_commands")
def test_a_block_is_not_a_command_of_ones_own(fake: FakeRuntime, invoke: Invoke) -> None:
    invoke("chat", piped=b'"""/lines"""\n')
    assert prompts(fake) == [["/lines"]]
