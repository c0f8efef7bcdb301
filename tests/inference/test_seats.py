"""Answers at once on one pair: each is written as if it were alone.

Who reads how much of a prompt in one call depends on who comes when, so the models are exact enough for
sums in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from localspec.decoding.conversations import FEWEST
from localspec.decoding.model import EFFICIENT_READ
from localspec.decoding.passes import (
    LEAST_READ,
    NO_ONE,
    READING_S,
    STALL_S,
    Asked,
    Participant,
    Seat,
)
from localspec.decoding.seating import FEWEST_SHARED
from localspec.demo import prompts
from localspec.errors import LocalSpecError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import OneAnswer, SeatedModels
from localspec.inference.runtime import Runtime
from localspec.inference.worker.client import Worker
from localspec.llama.context import Context
from localspec.types.candidates import Rows, TokenRun
from localspec.types.events import Finished, GenerationEvent, Paused, TextDelta
from localspec.types.request import EngineSettings, Grammar, Message, Mode, Request, Sampling
from tests.inference.runtimes import GREEDY, MODES, in_f32
from tests.waiting import until

TOKENS = 24
QUESTIONS = [item.prompt for item in prompts()]


@dataclass
class Written:
    """An answer in a thread of its own."""

    models: OneAnswer
    events: list[GenerationEvent] = field(default_factory=list)
    error: LocalSpecError | None = None
    thread: threading.Thread | None = None

    def start(self, request: Request | int, on_event: Callable[[int], object] = lambda _count: None) -> None:
        """Write; `on_event` is called with the number of events so far."""

        def write() -> None:
            models = self.models
            try:
                for event in models.resume(request) if isinstance(request, int) else models.generate(request):
                    self.events.append(event)
                    on_event(len(self.events))
            except LocalSpecError as error:
                self.error = error

        self.thread = threading.Thread(target=write, daemon=True)
        self.thread.start()

    def join(self) -> Written:
        assert self.thread is not None
        self.thread.join(30)
        assert not self.thread.is_alive(), "an answer hangs"
        return self

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def end(self) -> Finished:
        assert isinstance(self.events[-1], Finished)
        return self.events[-1]


def open_seats(target: Path, draft: Path | None, seats: int, context: int = 4096) -> Runtime:
    options = in_f32(target, context)
    return Runtime.open(
        OpenPlan(options, None if draft is None else replace(options, path=draft), seats=seats)
    )


@pytest.fixture(scope="module")
def seated(demo_target_f32: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_seats(demo_target_f32, demo_draft, 8) as runtime:
        yield runtime


def asked(number: int, mode: Mode = "off", sampling: Sampling = GREEDY, **more: Any) -> Request:  # noqa: ANN401
    settings = EngineSettings(mode=mode, draft_length=4, min_confidence=0.2, acceptance="match")
    prompt = (Message("system", "Be brief."), Message("user", QUESTIONS[number]))
    return replace(Request(prompt, sampling, settings, TOKENS, seed=7), **more)


def together(runtime: Runtime, requests: list[Request]) -> list[Written]:
    answers = [Written(runtime.for_one_of_several()) for _ in requests]
    for answer, request in zip(answers, requests, strict=True):
        answer.start(request)
    return [answer.join() for answer in answers]


def beside(runtime: Runtime, *others: tuple[Written, Request]) -> None:
    """Start further answers and wait until they are present, while the one that calls this is."""
    before = runtime._seating.answers()
    for answer, request in others:
        answer.start(request)
    until(lambda: runtime._seating.answers() == before + len(others))


def alone(runtime: Runtime, request: Request) -> Written:
    return together(runtime, [request])[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_greedy_texts_are_those_of_each_alone(seated: Runtime, mode: Mode, count: int) -> None:
    requests = [asked(number, mode) for number in range(count)]
    expected = [alone(seated, request).text for request in requests]
    found = together(seated, requests)
    assert [answer.error for answer in found] == [None] * count
    assert [answer.text for answer in found] == expected


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "sd"])
def test_sampled_texts_follow_their_seeds(seated: Runtime, mode: Mode) -> None:
    requests = [asked(number, mode, Sampling(temperature=0.8), seed=number) for number in range(4)]
    expected = [alone(seated, request).text for request in requests]
    assert [answer.text for answer in together(seated, requests)] == expected


def test_modes_and_a_grammar_beside_each_other(seated: Runtime) -> None:
    ruled = asked(0, grammar=Grammar("gbnf", 'root ::= "yes" | "no"'))
    requests = [ruled, asked(1, "sd"), asked(2, "ngram"), asked(3, "ssd"), asked(4, "sd", top_logprobs=3)]
    expected = [alone(seated, request).text for request in requests]
    assert expected[0] in {"yes", "no"}
    assert [answer.text for answer in together(seated, requests)] == expected


@pytest.mark.parametrize("mode", ["off", "ssd"])
def test_an_answer_that_comes_later_joins_and_changes_nothing(seated: Runtime, mode: Mode) -> None:
    first, second = Written(seated.for_one_of_several()), Written(seated.for_one_of_several())
    one, other = asked(5, mode), asked(6, mode)
    expected = [alone(seated, one).text, alone(seated, other).text]
    first.start(one, lambda count: beside(seated, (second, other)) if count == 8 else None)
    first.join()
    assert [first.text, second.join().text] == expected


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_a_cancelled_answer_takes_no_other_along(seated: Runtime, cancelled: int) -> None:
    requests = [asked(number, "sd", max_tokens=60) for number in range(3)]
    expected = [alone(seated, request).text for request in requests]
    answers = [Written(seated.for_one_of_several()) for _ in requests]
    for number, (answer, request) in enumerate(zip(answers, requests, strict=True)):

        def stop(count: int, answer: Written = answer) -> None:
            if count == 12:
                answer.models.cancel()

        answer.start(request, stop if number == cancelled else lambda _count: None)
    for number, answer in enumerate(answers):
        text = answer.join().text
        if number == cancelled:
            assert answer.end.reason == "cancelled"
            assert expected[number].startswith(text)
        else:
            assert text == expected[number]
            assert answer.end.reason != "cancelled"


def test_a_paused_answer_leaves_and_comes_back(seated: Runtime) -> None:
    requests = [asked(number, max_tokens=60) for number in range(2)]
    expected = [alone(seated, request).text for request in requests]
    first, second = (Written(seated.for_one_of_several()) for _ in requests)
    first.start(requests[0], lambda count: first.models.pause() if count == 10 else None)
    second.start(requests[1])
    paused = first.join().events[-1]
    assert isinstance(paused, Paused)
    again = Written(seated.for_one_of_several())
    again.start(paused.number)
    assert [first.text + again.join().text, second.join().text] == expected


def test_a_refused_answer_leaves_the_others_alone(seated: Runtime) -> None:
    refused = asked(0, grammar=Grammar("gbnf", "no grammar"))
    found = together(seated, [asked(1), refused, asked(2)])
    assert found[1].error is not None
    assert [found[0].text, found[2].text] == [alone(seated, asked(1)).text, alone(seated, asked(2)).text]


def test_a_shared_beginning_is_read_once(seated: Runtime) -> None:
    system = Message("system", " ".join(QUESTIONS[:30]))
    requests = [
        replace(asked(0), prompt=(system, Message("user", question)), max_tokens=4)
        for question in QUESTIONS[30:34]
    ]
    first = alone(seated, requests[0]).end.summary
    others = [answer.end.summary for answer in together(seated, requests[1:])]
    assert first.prompt_tokens > 300
    assert all(other.new_prompt_tokens < 80 for other in others)


def test_a_few_words_in_common_are_not_read_again(seated: Runtime) -> None:
    seated._seating.forget()
    summaries = [alone(seated, asked(number, max_tokens=1)).end.summary for number in (0, 1)]
    common = summaries[1].cached_tokens
    assert FEWEST_SHARED <= common < FEWEST
    assert summaries[1].new_prompt_tokens == summaries[1].prompt_tokens - common


@pytest.mark.slow
def test_a_conversation_that_rests_is_saved_and_its_cells_are_free(demo_target_f32: Path) -> None:
    with open_seats(demo_target_f32, None, 2) as runtime:
        runtime.keep_conversations(2**30)
        first = alone(runtime, asked(0))
        assert runtime.saved().count == 0
        alone(runtime, asked(1))
        assert runtime.saved().count == 1
        again = alone(runtime, asked(0))
        assert again.text == first.text
        assert again.end.summary.cached_tokens == again.end.summary.prompt_tokens - 1


def test_what_has_no_room_beside_others_is_paused_and_goes_on_later(
    demo_target_f32: Path, demo_draft: Path
) -> None:
    with open_seats(demo_target_f32, demo_draft, 3, context=512) as runtime:
        no_end = tuple((token, -100.0) for token in runtime._target_model.end_tokens)
        texts = [" ".join(QUESTIONS)[start : start + 1000] for start in (0, 1009, 2020)]
        requests = [replace(asked(0, "sd", logit_bias=no_end), prompt=text, max_tokens=90) for text in texts]
        expected = [alone(runtime, request).text for request in requests]
        answers, texts = [Written(runtime.for_one_of_several()) for _ in requests], [""] * 3

        def others_come(count: int) -> None:
            if count == 3:
                beside(runtime, *zip(answers[1:], requests[1:], strict=True))

        answers[0].start(requests[0], others_come)
        waiting, pauses = list(enumerate(answer.join() for answer in answers)), 0
        while waiting:
            number, answer = waiting.pop()
            assert answer.error is None
            texts[number] += answer.text
            if isinstance(paused := answer.events[-1], Paused):
                pauses += 1
                again = Written(runtime.for_one_of_several())
                again.start(paused.number)
                waiting.append((number, again.join()))
        assert pauses
        assert texts == expected


def test_prompts_are_read_in_pieces_beside_an_answer(
    seated: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, real = list[int](), Context.evaluate_runs

    def watched(self: Context, runs: Sequence[TokenRun]) -> list[Rows]:
        sizes.append(max(len(run.tokens) for run in runs))
        return real(self, runs)

    monkeypatch.setattr(Context, "evaluate_runs", watched)
    for limit in ("STALL_S", "READING_S"):
        monkeypatch.setattr(f"localspec.decoding.passes.{limit}", 0.0)  # every piece takes too long
    no_end = tuple((token, -100.0) for token in seated._target_model.end_tokens)
    long = replace(asked(0), prompt=" ".join(QUESTIONS[5:45]), max_tokens=1)
    first, second = Written(seated.for_one_of_several()), Written(seated.for_one_of_several())
    first.start(
        asked(1, max_tokens=90, logit_bias=no_end),
        lambda count: beside(seated, (second, long)) if count == 3 else None,
    )
    assert len(first.join().text) > len(second.join().text)
    assert sizes
    assert max(sizes) <= EFFICIENT_READ


@pytest.mark.parametrize("mode", MODES)
def test_on_the_cpu_long_pieces_are_in_no_call_with_an_answer_to_a_long_text(
    seated: Runtime, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr("localspec.decoding.passes.APART", 0)
    calls, real = list[list[int]](), Context.evaluate_runs

    def watched(self: Context, runs: Sequence[TokenRun]) -> list[Rows]:
        calls.append([len(run.tokens) for run in runs])
        return real(self, runs)

    monkeypatch.setattr(Context, "evaluate_runs", watched)
    no_end = tuple((token, -100.0) for token in seated._target_model.end_tokens)
    requests = [
        asked(1, mode, max_tokens=60, logit_bias=no_end),
        replace(asked(0, mode, logit_bias=no_end), prompt=" ".join(QUESTIONS[5:45]), reuses_cache=False),
    ]
    expected = [alone(seated, request).text for request in requests]
    calls.clear()
    first, second = Written(seated.for_one_of_several()), Written(seated.for_one_of_several())
    first.start(requests[0], lambda count: beside(seated, (second, requests[1])) if count == 3 else None)
    assert [first.join().text, second.join().text] == expected
    assert any(max(call) >= EFFICIENT_READ for call in calls)
    assert all(len(call) == 1 for call in calls if max(call) >= EFFICIENT_READ)
    assert any(len(call) == 2 for call in calls)


def test_who_came_first_is_read_first_and_a_short_prompt_beside_it(seated: Runtime) -> None:
    passes = seated._contexts.passes
    assert passes is not None
    seats = [target for target, *_ in passes.seats[:4]]
    answers = [Participant() for _ in seats]
    try:
        for number, length in enumerate((400, 500, 450, 80)):
            seat = seats[number]
            seat.truncate(0)
            answers[number].number = number
            seat.participant, seat.promised = answers[number], length
        asked_for = [
            Asked(seat, [0] * min(seat.promised, 300), 1, -number) for number, seat in enumerate(seats)
        ]

        def shares(piece: int, *, shortest: bool) -> dict[int, int]:
            found = passes._shares(asked_for, piece, 2000, shortest=shortest)
            return {asked.seat.promised: share for asked, share in found if share}

        assert shares(50, shortest=False) == {400: 50}
        assert shares(50, shortest=True) == {80: 80}  # whose rest would be left short
        assert shares(100, shortest=True) == {80: 80, 400: 20}
        assert shares(350, shortest=False) == {400: 300, 80: 80}
        assert sum(shares(2000, shortest=False).values()) == 980
    finally:
        for seat in seats:
            seat.participant, seat.promised = NO_ONE, 0


def test_no_piece_of_a_prompt_is_left_inefficiently_short(seated: Runtime) -> None:
    passes = seated._contexts.passes
    assert passes is not None
    seat = passes.seats[0][0]
    least = EFFICIENT_READ
    for left, piece, room, read in (
        (2 * least - 1, least, 2000, 2 * least - 1),
        (2 * least, least, 2000, least),
        (least + 40, least, least + 39, least),  # no room for more in the call
        (LEAST_READ + 15, LEAST_READ, 2000, LEAST_READ + 15),
        (LEAST_READ + 20, LEAST_READ, 2000, LEAST_READ),  # a call that is long already gets no longer
        (0, least, 2000, 0),
    ):
        asked = Asked(seat, [0] * left, 0, 1)
        assert sum(share for _, share in passes._shares([asked], piece, room, shortest=False)) == read


def test_questions_are_read_in_pieces_and_drafts_are_not(seated: Runtime) -> None:
    passes = seated._contexts.passes
    assert passes is not None
    seat, number = passes.seats[0][0], 1
    question, draft, end = (
        Asked(seat, [0] * size, rows, number) for size, rows in ((50, 1), (24, 24), (9, 1))
    )
    assert [asked.is_reading for asked in (question, draft, end)] == [True, False, False]
    shares = passes._fitting(seat.model, [end, draft])
    assert shares == [(end, 9), (draft, 24)]


def test_pieces_of_prompts_follow_the_time_of_calls(seated: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = seated._contexts.passes
    assert passes is not None
    monkeypatch.setattr(passes, "_pieces", {})
    monkeypatch.setattr(passes, "_token_s", dict(passes._token_s))
    monkeypatch.setattr(passes, "_may_take_s", STALL_S)
    model = passes.seats[0][0].model
    passes._pieces[model, STALL_S] = piece = 4 * EFFICIENT_READ
    passes._fit_piece(model, piece + 40, STALL_S * (piece + 40) / piece)  # with the end of a prompt
    assert passes._piece(model) == piece
    passes._fit_piece(model, piece, STALL_S * 1.25)
    assert passes._piece(model) == 3 * EFFICIENT_READ  # the next of its multiples
    passes._fit_piece(model, 8, STALL_S / 4)  # the end of a prompt, which says nothing
    assert passes._piece(model) == 3 * EFFICIENT_READ
    for _ in range(9):
        passes._fit_piece(model, passes._piece(model), READING_S)
    assert passes._piece(model) == EFFICIENT_READ  # smaller ones would read the prompt more slowly
    for _ in range(9):
        passes._fit_piece(model, passes._piece(model), READING_S * 9)
    assert passes._piece(model) == LEAST_READ
    passes._fit_piece(model, LEAST_READ, READING_S / 1.5)
    assert passes._piece(model) == int(LEAST_READ * 1.5)


def test_only_an_answer_that_is_alone_has_branches(seated: Runtime) -> None:
    answer = alone(seated, asked(3, "ssd"))
    assert answer.end.summary.drafted
    draft = seated._contexts.draft
    assert draft is not None
    together(seated, [asked(1, "ssd"), asked(2, "ssd")])
    seat = seated._seating.places[0].seats[1]
    assert isinstance(seat, Seat)
    assert seat.max_sequences == 1


def test_answers_in_company_are_written_by_one_thread(
    seated: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = list[int]()
    evaluate_runs = Context.evaluate_runs

    def recorded(model: Context, runs: Sequence[TokenRun]) -> list[Rows]:
        callers.append(threading.get_ident())
        return evaluate_runs(model, runs)

    monkeypatch.setattr(Context, "evaluate_runs", recorded)
    found = together(seated, [asked(number, max_tokens=80, ignores_circles=True) for number in range(3)])
    assert callers
    assert len(set(callers)) == 1
    assert callers[0] not in {answer.thread.ident for answer in found if answer.thread is not None}


def test_nobody_waits_for_a_reader_that_takes_no_events(seated: Runtime) -> None:
    slow, quick = (Written(seated.for_one_of_several()) for _ in range(2))
    requests = [asked(number, max_tokens=80, ignores_circles=True) for number in range(2)]
    expected = [alone(seated, request).text for request in requests]
    has_others = threading.Event()

    def stand_still(count: int) -> None:
        if count == 3:
            beside(seated, (quick, requests[1]))
            has_others.set()
        elif has_others.is_set() and count > 8:
            quick.join()

    slow.start(requests[0], stand_still)
    assert [slow.join().text, quick.join().text] == expected


@pytest.mark.parametrize("mode", ["off", "sd"])
def test_a_reader_that_leaves_ends_its_answer_alone(seated: Runtime, mode: Mode) -> None:
    leaving, staying = seated.for_one_of_several(), Written(seated.for_one_of_several())
    requests = [
        asked(number, mode, max_tokens=limit, ignores_circles=True) for number, limit in ((0, 2000), (1, 60))
    ]
    expected = alone(seated, requests[1]).text
    events = leaving.generate(requests[0])
    for count, _event in enumerate(events):
        if count == 3:
            beside(seated, (staying, requests[1]))
        if count == 20:
            break
    assert isinstance(events, Generator)
    events.close()
    assert staying.join().text == expected
    assert seated._seating.answers() == 0


def test_a_thread_without_answers_ends_and_another_takes_over(
    seated: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = seated._contexts.passes
    assert passes is not None
    expected = [answer.text for answer in together(seated, [asked(0), asked(1)])]
    monkeypatch.setattr("localspec.decoding.passes._IDLE_S", 0.0)
    assert [answer.text for answer in together(seated, [asked(0), asked(1)])] == expected
    until(lambda: not passes._has_thread)
    assert [answer.text for answer in together(seated, [asked(0), asked(1)])] == expected


def test_nothing_waits_for_an_answer_that_would_only_use_idle_models(seated: Runtime) -> None:
    found = list[object]()

    def look(count: int) -> None:
        if count == 8:
            found.append(seated.measure_plain())
            found.extend(seated.read_now(asked(8), lambda: True))
            seated.measure_between_answers(lambda: False)

    writing = Written(seated.for_one_of_several())
    writing.start(asked(7), look)
    assert writing.join().text == alone(seated, asked(7)).text
    assert found == [None]
    assert seated.measure_plain() is not None


def test_models_with_one_seat_take_one_answer_at_a_time(demo_target: Path) -> None:
    with open_seats(demo_target, None, 1) as runtime:
        assert (runtime.seats, runtime._contexts.passes) == (1, None)


@pytest.mark.slow
def test_in_another_process_a_cancel_ends_one_answer(
    seated: Runtime, demo_target_f32: Path, demo_draft: Path
) -> None:
    options = in_f32(demo_target_f32, 4096)
    plan = OpenPlan(options, replace(options, path=demo_draft), seats=3)
    no_end = tuple((token, -100.0) for token in seated._target_model.end_tokens)
    requests = [asked(number, "sd", max_tokens=60) for number in range(3)]
    requests[0] = replace(requests[0], max_tokens=3000, logit_bias=no_end)
    expected = [alone(seated, request).text for request in requests[1:]]
    with Worker.open(plan) as worker:
        assert isinstance(worker, SeatedModels)
        assert worker.seats == 3
        answers = [Written(worker.for_one_of_several()) for _ in requests]
        answers[0].start(requests[0], lambda count: answers[0].models.cancel() if count == 3 else None)
        for answer, request in zip(answers[1:], requests[1:], strict=True):
            answer.start(request)
        assert answers[0].join().end.reason == "cancelled"
        assert [answer.join().text for answer in answers[1:]] == expected
