"""Answers at once on a context whose parts belong to one conversation each (`--no-kv-unified`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import ContextFullError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.events import Finished
from localspec.types.request import Message, Mode
from tests.inference.runtimes import MODES, in_f32
from tests.inference.test_seats import QUESTIONS, Written, alone, asked, beside, together

SEATS = 4
PART = 512


def opened(target: Path, draft: Path | None, context: int = SEATS * PART) -> Runtime:
    options = in_f32(target, context)
    divided = replace(options, kv_unified=False)
    return Runtime.open(
        OpenPlan(divided, None if draft is None else replace(options, path=draft), seats=SEATS)
    )


@pytest.fixture(scope="module")
def divided(demo_target_f32: Path, demo_draft: Path) -> Iterator[Runtime]:
    with opened(demo_target_f32, demo_draft) as runtime:
        yield runtime


@pytest.mark.parametrize("mode", MODES)
def test_greedy_texts_are_those_of_each_alone(divided: Runtime, mode: Mode) -> None:
    requests = [asked(number, mode) for number in range(SEATS)]
    expected = [alone(divided, request).text for request in requests]
    found = together(divided, requests)
    assert [answer.error for answer in found] == [None] * SEATS
    assert [answer.text for answer in found] == expected


def test_texts_are_those_of_a_context_that_is_shared(divided: Runtime, demo_target_f32: Path) -> None:
    requests = [asked(number) for number in range(SEATS)]
    with Runtime.open(OpenPlan(in_f32(demo_target_f32, SEATS * PART), seats=SEATS)) as shared:
        expected = [answer.text for answer in together(shared, requests)]
    assert [answer.text for answer in together(divided, requests)] == expected


@pytest.mark.parametrize("mode", ["off", "sd"])
def test_answers_come_and_go_beside_one(divided: Runtime, mode: Mode) -> None:
    staying, leaving = Written(divided.for_one_of_several()), Written(divided.for_one_of_several())
    requests = [asked(4, mode, max_tokens=80), asked(5, mode, max_tokens=300, ignores_circles=True)]
    expected = [alone(divided, request).text for request in requests]
    staying.start(requests[0], lambda count: beside(divided, (leaving, requests[1])) if count == 3 else None)
    staying.join()
    leaving.models.cancel()
    assert expected[1].startswith(leaving.join().text)
    assert staying.text == expected[0]


def test_a_beginning_that_another_conversation_has_is_copied(divided: Runtime) -> None:
    system = Message("system", " ".join(QUESTIONS[:20]))
    requests = [
        replace(asked(0), prompt=(system, Message("user", question)), max_tokens=6)
        for question in QUESTIONS[30:33]
    ]
    divided._seating.forget()
    expected = [alone(divided, replace(request, reuses_cache=False)).text for request in requests]
    divided._seating.forget()
    first = alone(divided, requests[0])
    found = together(divided, requests[1:])
    assert [first.text, *(answer.text for answer in found)] == expected
    assert first.end.summary.prompt_tokens > 200
    assert all(answer.end.summary.new_prompt_tokens < 80 for answer in found)


def test_a_few_words_in_common_are_worth_no_copy(divided: Runtime) -> None:
    divided._seating.forget()
    summaries = [alone(divided, asked(number, max_tokens=1)).end.summary for number in (0, 1)]
    assert summaries[1].cached_tokens == 0


def test_each_conversation_has_its_part_and_no_more(divided: Runtime) -> None:
    assert divided.target.context == PART
    no_end = tuple((token, -100.0) for token in divided._target_model.end_tokens)
    full = [
        replace(asked(number), prompt=text, max_tokens=None, logit_bias=no_end, ignores_circles=True)
        for number, text in enumerate((" ".join(QUESTIONS[:15]), " ".join(QUESTIONS[20:35])))
    ]
    found = together(divided, [*full, asked(2), asked(3)])
    for answer in found[:2]:
        end = answer.end
        assert (end.reason, end.summary.prompt_tokens + end.summary.tokens) == ("context", PART)
    assert all(isinstance(answer.events[-1], Finished) for answer in found)
    too_long = Written(divided.for_one_of_several())
    too_long.start(replace(asked(0), prompt=" ".join(QUESTIONS)))
    assert isinstance(too_long.join().error, ContextFullError)


def test_a_conversation_that_gave_way_comes_back_from_its_copy(demo_target_f32: Path) -> None:
    with opened(demo_target_f32, None) as runtime:
        runtime.keep_conversations(2**30)
        first = alone(runtime, asked(0))
        for number in range(1, SEATS + 1):
            alone(runtime, asked(number))
        assert runtime.saved().count == 1  # the others rest in their parts
        again = alone(runtime, asked(0))
        assert again.text == first.text
        assert again.end.summary.cached_tokens == again.end.summary.prompt_tokens - 1


def test_one_conversation_has_the_whole_context(demo_target: Path) -> None:
    options = replace(in_f32(demo_target, PART), kv_unified=False)
    with Runtime.open(OpenPlan(options)) as runtime:
        assert (runtime.seats, runtime.target.context) == (1, PART)
        assert alone(runtime, asked(0)).end.summary.tokens


def test_parts_that_are_too_small_are_refused(demo_target: Path) -> None:
    with pytest.raises(UserError, match="50 for each of 4 conversations"):
        opened(demo_target, None, context=200)
