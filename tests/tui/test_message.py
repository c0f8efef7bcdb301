"""What a message shows, and what can be done with it by key and by mouse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.widgets import Static

from localspec.chat.messages import Attachment, BranchMessage, State
from localspec_tui.widgets.transcript.message import Action, MessageView, ThinkingView
from tests.tui.transcripts import Host, chat, said, selected, shown, until

CODE = "Use this:\n\n```python\nprint('one')\n```\n\nor that:\n\n```\ntwo\n```\n"


async def asked_after(key: str, item: BranchMessage) -> list[tuple[Action, int, str]]:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        await host.transcript.show([item])
        host.transcript.focus_last()
        await pilot.press(key)
        await pilot.pause()
        return [(asked.action, asked.message_id, asked.text) for asked in host.asked]


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("key", "action"),
    [
        ("y", "copy"),
        ("e", "edit"),
        ("r", "regenerate"),
        ("c", "continue"),
        ("left_square_bracket", "previous"),
        ("right_square_bracket", "next"),
        ("t", "timeline"),
        ("m", "compare"),
    ],
)
async def test_key_asks_for_an_action(key: str, action: Action) -> None:
    assert await asked_after(key, shown(2, "an answer")) == [(action, 2, "")]


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["b", "Y"])
async def test_key_copies_the_first_code(key: str) -> None:
    assert await asked_after(key, shown(2, CODE)) == [("copy-code", 2, "print('one')\n")]


@pytest.mark.asyncio
async def test_message_without_code_says_so() -> None:
    assert await asked_after("b", shown(2, "no code")) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["t", "m", "c"])
async def test_questions_have_no_actions_of_answers(key: str) -> None:
    assert await asked_after(key, shown(1, "a question")) == []


def test_every_binding_can_be_remapped() -> None:
    for binding in MessageView.BINDINGS:
        assert not isinstance(binding, tuple)
        assert (binding.id or "").startswith("message.")


@pytest.mark.asyncio
async def test_each_code_has_its_own_copy() -> None:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        await host.transcript.show([shown(2, CODE)])
        await until(pilot, "two")
        for head in ("python  copy", "code  copy"):
            x, y = host.place(head)
            await pilot.click(offset=(x + len(head) - 2, y))
        assert [asked.text for asked in host.asked] == ["print('one')\n", "two\n"]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_focus_moves_between_messages() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show(chat(300))
        host.transcript.focus_last()
        walked = []
        for key in ("k", "up", "j", "down", "j", "g"):
            await pilot.press(key)
            await pilot.pause()
            walked.append(selected(host.transcript))
        assert walked[:5] == [299, 298, 299, 300, 300]
        await until(pilot, "message number 1\n")
        assert selected(host.transcript) == 1
        await pilot.press("G")
        await until(pilot, "message number 300")
        assert selected(host.transcript) == 300


@pytest.mark.asyncio
async def test_names_tell_who_speaks_and_actions_appear_with_the_focus() -> None:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        await host.transcript.show([shown(1, "my question"), shown(2, "its answer")])
        await until(pilot, ["You", "my question", "Assistant", "its answer"])
        assert "regenerate" not in host.text()
        host.transcript.focus_last()
        await until(pilot, ["copy", "edit", "regenerate", "timeline", "compare modes"])
        await pilot.click(offset=host.place("regenerate"))
        assert [(asked.action, asked.message_id) for asked in host.asked] == [("regenerate", 2)]


@pytest.mark.asyncio
async def test_actions_appear_under_the_mouse() -> None:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        await host.transcript.show([shown(2, "its answer")])
        await until(pilot, "its answer")
        await pilot.hover(offset=host.place("its answer"))
        await until(pilot, "regenerate")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("stopped", "stopped - /continue resumes it"),
        ("length", "length limit - /continue resumes it"),
        ("context", "context is full - /continue resumes it"),
        ("circles", "repeats itself - /continue resumes it"),
        ("failed", "model failed - /continue resumes it"),
    ],
)
async def test_unfinished_answer_says_why_and_continues_by_a_click(state: State, words: str) -> None:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        await host.transcript.show([shown(2, "half an", state=state)])
        await until(pilot, words)
        await pilot.click(offset=host.place("/continue"))
        assert [asked.action for asked in host.asked] == ["continue"]
        await host.transcript.add(shown(3, "another question"))
        await until(pilot, words.replace("/continue resumes it", "continue"))
        await host.transcript.show([shown(2, "half an", state=state), shown(3, "another question")])
        await until(pilot, "another question")
        assert "/continue" not in host.text()


@pytest.mark.asyncio
async def test_an_answer_without_a_word_says_so() -> None:
    host = Host()
    async with host.run_test() as pilot:
        item = said(shown(2), "<think>\nhm\n</think>\n\n")
        await host.transcript.show([item])
        await until(pilot, ["the model said nothing"])
        await host.transcript.replace(said(item, "A word."))
        await until(pilot, ["A word."])
        assert "said nothing" not in host.text()


@pytest.mark.asyncio
async def test_attachments_branches_figures_and_dropping_are_shown() -> None:
    host = Host()
    question = shown(1, "read [this]", attachments=(Attachment("notes.txt", "x" * 1_234),))
    answer = replace(shown(2, "done"), branch=2, branches=3, label="SSD  58.3 tokens/s (x1.9)")
    async with host.run_test(size=(100, 30)) as pilot:
        await host.transcript.show([question, answer])
        await until(pilot, ["read [this]", "notes.txt 1.21 KiB", "‹ 2/3 ›", "SSD  58.3 tokens/s (x1.9)"])
        await pilot.click(offset=host.place("‹"))
        await pilot.click(offset=host.place("›"))
        assert [asked.action for asked in host.asked] == ["previous", "next"]
        await host.transcript.replace(replace(question, message=replace(question.message, dropped=True)))
        await until(pilot, "not sent to the model")


@pytest.mark.asyncio
async def test_the_name_of_an_attachment_sends_nothing_to_the_terminal() -> None:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        named = Attachment("\x1b]0;title\x07notes\x1b[2J.txt", "x")
        await host.transcript.show([shown(1, "read", attachments=(named,))])
        await until(pilot, "[notes.txt 1 byte]")


@pytest.mark.asyncio
async def test_thinking_is_folded_until_asked_for() -> None:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        await host.transcript.show([shown(2, "<think>hidden words here</think>\n\nThe answer.")])
        await until(pilot, ["Thinking, 3 words  ▸", "The answer."])
        assert "hidden words" not in host.text()
        await pilot.click(offset=host.place("Thinking"))
        await until(pilot, ["▾", "hidden words here"])
        host.query_one(ThinkingView).focus()
        await pilot.press("enter")
        await until(pilot, "▸")
        host.transcript.thinking = True
        await until(pilot, "hidden words here")
        host.transcript.thinking = False
        await until(pilot, "▸")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("size", "text"),
    [
        ((160, 45), "\n".join(f"line {n}" for n in range(60))),
        ((80, 24), "line 0 " + "word " * 900),
        ((80, 24), "\n".join(["line 0 " * 80] * 9)),
    ],
    ids=["lines", "one line", "long lines"],
)
async def test_a_long_question_is_folded_until_asked_for(size: tuple[int, int], text: str) -> None:
    host = Host()
    async with host.run_test(size=size) as pilot:
        await host.transcript.show([shown(1, text)])
        await until(pilot, ["line 0", f"Folded question, {len(text.split()):,} words  ▸"])
        short = host.query_one(MessageView).region.height
        assert short < 16
        await pilot.click(offset=host.place("Folded question"))
        await pilot.pause()
        assert host.query_one(MessageView).region.height > short
        host.query_one(MessageView).focus()
        await pilot.press("enter")
        await until(pilot, "Folded question")
        assert host.query_one(MessageView).region.height == short
        await pilot.press("y")
        assert [asked.action for asked in host.asked] == ["copy"]  # all of it


@pytest.mark.asyncio
async def test_thinking_is_counted_while_it_comes() -> None:
    host = Host()
    text = "<think>one two three</think>\n\nThe **answer**."
    async with host.run_test(size=(100, 30)) as pilot:
        item = shown(2, " ", state="writing")
        await host.transcript.show([said(item, "", "writing")])
        for character in text[:19]:
            host.transcript.stream(character, [])
        await until(pilot, "Thinking…, 3 words")
        for character in text[19:]:
            host.transcript.stream(character, [])
        await until(pilot, ["Thinking, 3 words", "The answer."])
        await host.transcript.replace(said(item, text))
        await until(pilot, ["Thinking, 3 words", "The answer."])
        assert "<think>" not in host.text()


@pytest.mark.asyncio
async def test_thinking_without_an_end_stays_thinking() -> None:
    """As an answer is kept that was stopped, and whose prompt had opened the thinking."""
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        item = said(shown(2), "", "writing")
        await host.transcript.show([item])
        for text in ("<think>\n", "one\n\n", "```\ntwo\n```\n", "three"):
            host.transcript.stream(text, [])
        await until(pilot, "Thinking…, 5 words")
        await host.transcript.replace(said(item, "<think>\none\n\n```\ntwo\n```\nthree", "stopped"))
        await until(pilot, ["Thinking, 5 words", "stopped"])
        assert "three" not in host.text()
        host.query_one(MessageView).focus()
        await pilot.press("Y")
        await pilot.pause()
        assert host.asked == []  # its code is none of the answer's


@pytest.mark.asyncio
async def test_a_closing_tag_alone_is_text() -> None:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        await host.transcript.show([shown(2, "It ends with\n`</think>`, like\n</think> this.")])
        await until(pilot, ["It ends with", "this."])
        assert not host.query(ThinkingView)


@pytest.mark.asyncio
async def test_text_is_selected_as_it_was_written() -> None:
    host = Host()
    async with host.run_test(size=(40, 24)) as pilot:
        words = " ".join(f"word{number}" for number in range(20))
        await host.transcript.show([shown(2, f"{words}\n\n- item **bold**\n")])
        await until(pilot, "item bold")
        x, y = host.place("word0")
        await pilot.mouse_down(offset=(x, y))
        x, y = host.place("bold")
        await pilot.hover(offset=(x + 4, y))
        await pilot.mouse_up(offset=(x + 4, y))
        await pilot.pause()
        assert (host.screen.get_selected_text() or "").startswith(f"{words}\n\n- item bol")


@pytest.mark.asyncio
async def test_only_web_links_are_opened_and_only_by_a_click() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show([shown(2, "[good](https://example.org/a) [bad](file:///etc/passwd)")])
        await until(pilot, "good")
        await pilot.hover(offset=host.place("good"))
        assert host.opened == []
        await pilot.click(offset=host.place("good"))
        await pilot.click(offset=host.place("bad"))
        assert host.opened == ["https://example.org/a"]


@pytest.mark.asyncio
async def test_names_of_files_are_no_links() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        await host.transcript.show([shown(2, "README.md says www.example.de, src/run.sh not")])
        await until(pilot, "README.md")
        for word in ("README.md", "run.sh", "www.example.de"):
            await pilot.click(offset=host.place(word))
        assert host.opened == ["http://www.example.de"]


@pytest.mark.asyncio
async def test_changed_question_is_shown_again() -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        item = shown(1, "first wording")
        await host.transcript.show([item])
        await host.transcript.replace(said(item, "second wording"))
        await until(pilot, "second wording")
        assert "first wording" not in host.text()
        assert host.query(MessageView).first().query(Static)
