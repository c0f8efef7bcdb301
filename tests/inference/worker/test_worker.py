"""The worker answers as the runtime in this process does, and stops when it is reported to."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.decoding.measurements import CostRequest
from localspec.errors import (
    Cancelled,
    ContextFullError,
    EngineDied,
    EngineError,
    ModelFileError,
    PairingError,
    UserError,
)
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import OpenModels, SharedModels, TunableModels
from localspec.inference.runtime import Runtime
from localspec.inference.worker.client import Worker
from localspec.inference.worker.wire import FirstCall, LogLine, Measuring, Reply
from localspec.tuning.costs import call_costs
from localspec.tuning.trace import trace
from localspec.types.events import Finished, GenerationEvent, Paused, RoundDone, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from tests.inference.runtimes import LONG_STORY, MODES, QUESTION, beginning, end_of, greedy, text_of
from tests.inference.worker.conftest import Open
from tests.inference.worker.processes import ENDLESS, children, ends
from tests.llama import tiny


@pytest.mark.slow
def test_it_offers_what_open_models_offer(worker: Worker, runtime: Runtime) -> None:
    models: OpenModels = worker
    assert (models.target, models.draft, models.notes) == (runtime.target, runtime.draft, runtime.notes)
    assert models.count_tokens(QUESTION) == runtime.count_tokens(QUESTION)
    rendered = worker.render(Request(QUESTION))
    tokens = worker.tokenize(rendered)
    assert [token for token, _ in tokens] == runtime.encode(QUESTION)
    assert b"".join(piece for _, piece in tokens).decode() == rendered
    assert worker.detokenize([token for token, _ in tokens]) == rendered
    with pytest.raises(UserError, match="is not a token"):
        worker.detokenize([-1])
    assert all(0 < device.used <= device.total for device in models.memory())


@pytest.mark.parametrize("mode", MODES)
def test_greedy_answers_are_those_of_the_runtime(worker: Worker, runtime: Runtime, mode: Mode) -> None:
    request = greedy(EngineSettings(mode=mode, min_confidence=0.2))
    expected, found = list(runtime.generate(request)), list(worker.generate(request))
    assert text_of(found) == text_of(expected)
    assert end_of(found).summary.tokens == end_of(expected).summary.tokens == 40
    assert sum(event.tokens for event in found if isinstance(event, RoundDone)) >= 40


def test_settings_are_chosen_and_plain_decoding_is_measured(worker: Worker) -> None:
    settings, reason = worker.choose_settings(EngineSettings(draft_length=3))
    assert settings.draft_length == 3
    assert "tokens/s" in reason
    list(worker.generate(greedy()))
    rate = worker.measure_plain()
    assert rate is not None
    assert rate.tokens_per_s > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_trace_is_that_of_the_runtime(worker: Worker, runtime: Runtime, temperature: float) -> None:
    models: TunableModels = worker
    wish = replace(greedy(), sampling=Sampling(temperature))
    expected, found = trace(runtime, wish), models.perform(trace, wish)
    for name in ("tokens", "target_ids", "target_probs", "draft_ids", "draft_logits", "target_of_draft"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert (found.prompt, found.ended) == (expected.prompt, expected.ended)
    with pytest.raises(ContextFullError):
        worker.perform(trace, greedy(prompt=LONG_STORY * 12))


def test_costs_are_measured_and_a_measurement_can_be_cancelled(worker: Worker) -> None:
    found = worker.perform(call_costs, CostRequest(40, together=True, budget_s=0.0))
    assert (found.depth, found.together) == (40, True)
    assert min(seconds for _, seconds in (*found.verify, *found.step)) > 0
    begun = threading.Event()

    def cancel_until(ended: threading.Event) -> None:
        begun.set()
        while not ended.is_set():
            worker.cancel()

    for call in (
        lambda: worker.perform(call_costs, CostRequest(40, together=False, budget_s=600.0)),
        lambda: worker.perform(trace, ENDLESS),
    ):
        ended = threading.Event()
        thread = threading.Thread(target=cancel_until, args=(ended,))
        thread.start()
        begun.wait()
        try:
            with pytest.raises(Cancelled):
                call()
        finally:
            ended.set()
            thread.join()


def test_tokens_are_counted_and_memory_is_read_during_an_answer(worker: Worker, runtime: Runtime) -> None:
    events = worker.generate(ENDLESS)
    next(event for event in events if isinstance(event, TextDelta))
    for length in range(1, 20):
        conversation = (Message("user", "many words " * length),)
        assert worker.count_tokens(conversation) == runtime.count_tokens(conversation)
    assert worker.memory()
    worker.cancel()
    assert end_of(list(events)).reason == "cancelled"


def test_cancelling_ends_the_answer_and_only_this_one(worker: Worker) -> None:
    events = worker.generate(ENDLESS)
    before = next(event for event in events if isinstance(event, TextDelta))
    worker.cancel()
    worker.cancel()
    assert before.text
    assert end_of(list(events)).reason == "cancelled"
    worker.cancel()
    assert end_of(list(worker.generate(greedy()))).reason == "length"


def until_paused(worker: Worker, request: Request) -> tuple[str, int]:
    """Return an answer's text up to a pause at the first chance, and its number."""
    came = list[GenerationEvent]()
    for event in worker.generate(request):
        worker.pause()
        came.append(event)
    assert isinstance(came[-1], Paused)
    return text_of(came), came[-1].number


def test_answers_take_turns_and_their_caches_are_kept(worker: Worker) -> None:
    models: SharedModels = worker
    request = replace(ENDLESS, prompt=(Message("user", LONG_STORY),))
    list(models.generate(replace(request, max_tokens=1)))  # replaces what an earlier test left in the caches
    models.keep_conversations(2**30)
    text, number = until_paused(worker, request)
    assert text_of(list(models.generate(greedy())))
    saved = models.saved()
    assert (saved.count, saved.limit) == (1, 2**30)
    text += beginning(worker, models.resume(number), 200)
    models.keep_conversations(0)
    assert models.saved().count == 0
    assert text == beginning(worker, models.generate(request), len(text))


def test_a_paused_answer_can_be_dropped_while_another_is_written(worker: Worker) -> None:
    _, number = until_paused(worker, ENDLESS)
    running = worker.generate(ENDLESS)
    next(running)
    worker.drop(number)
    worker.cancel()
    assert end_of(list(running)).reason == "cancelled"
    with pytest.raises(UserError, match="there is no paused answer"):
        list(worker.resume(number))


def test_an_answer_that_is_left_while_it_is_paused_is_dropped(worker: Worker) -> None:
    _, before = until_paused(worker, ENDLESS)
    worker.drop(before)
    events = worker.generate(ENDLESS)
    next(events)
    worker.pause()
    worker.measure_plain()  # once this has its turn, the other stands still
    events.close()
    _, after = until_paused(worker, ENDLESS)
    worker.drop(after)
    for number in range(before + 1, after):
        with pytest.raises(UserError):
            list(worker.resume(number))


@pytest.mark.slow
def test_another_thread_can_cancel_at_any_moment(worker: Worker) -> None:
    for _ in range(20):
        started, ended = threading.Event(), threading.Event()

        def keep_cancelling(started: threading.Event = started, ended: threading.Event = ended) -> None:
            started.set()
            while not ended.is_set():
                worker.cancel()

        thread = threading.Thread(target=keep_cancelling)
        thread.start()
        started.wait()
        try:
            assert end_of(list(worker.generate(ENDLESS))).reason == "cancelled"
        finally:
            ended.set()
            thread.join()


def test_closing_the_iterator_stops_the_answer(worker: Worker, runtime: Runtime) -> None:
    expected = text_of(list(runtime.generate(greedy())))
    for count in (1, 5):
        events = worker.generate(ENDLESS)
        for _ in range(count):
            next(events)
        events.close()
        assert list(events) == []
        assert text_of(list(worker.generate(greedy()))) == expected


def test_a_lost_answer_may_be_collected_by_the_thread_that_reads(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, process = worker.generate(ENDLESS), worker._process
    next(events)
    deliver = process._deliver

    def collect_and_deliver(reply: Reply | LogLine) -> None:
        events.close()
        deliver(reply)

    monkeypatch.setattr(process, "_deliver", collect_and_deliver)
    assert end_of(list(worker.generate(greedy()))).reason == "length"


def test_an_answer_nobody_asks_for_is_not_begun(worker: Worker) -> None:
    worker.generate(ENDLESS)
    assert end_of(list(worker.generate(greedy()))).reason == "length"


@pytest.mark.slow
def test_closing_the_worker_ends_the_answer(open_worker: Open) -> None:
    worker = open_worker()
    events = worker.generate(ENDLESS)
    next(events)
    worker.close()
    worker.close()
    assert ends(worker.pid)
    rest = list(events)
    assert isinstance(rest[-1], Finished)
    assert rest[-1].reason == "cancelled"
    for call in (worker.memory, worker.choose_settings, lambda: list(worker.generate(ENDLESS))):
        with pytest.raises(EngineError, match="closed") as caught:
            call()
        assert not isinstance(caught.value, EngineDied)
    worker.cancel()


def test_errors_keep_their_type_their_words_and_their_hint(worker: Worker, runtime: Runtime) -> None:
    request = greedy(prompt=LONG_STORY * 12)
    with pytest.raises(ContextFullError) as expected:
        next(runtime.generate(request))
    with pytest.raises(ContextFullError) as found:
        next(worker.generate(request))
    assert (found.value.message, found.value.hint) == (expected.value.message, expected.value.hint)
    assert found.value.hint
    with pytest.raises(UserError, match="empty"):
        next(worker.generate(greedy(prompt="")))


@pytest.mark.slow
def test_models_that_cannot_be_opened_say_why(demo_target: Path, tmp_path: Path) -> None:
    before = children()
    with pytest.raises(ModelFileError, match="there is no file") as missing:
        Worker.open(OpenPlan(ModelOptions(tmp_path / "none.gguf")))
    assert missing.value.hint
    other = tiny.llama(tmp_path / "other.gguf")
    with pytest.raises(PairingError):
        Worker.open(OpenPlan(ModelOptions(demo_target), ModelOptions(other)))
    assert children() <= before


@pytest.mark.slow
def test_a_context_beyond_the_memory_is_rejected_in_words(demo_target: Path) -> None:
    with pytest.raises(UserError, match="context"):
        Worker.open(OpenPlan(ModelOptions(demo_target, context=2**30)))


def test_what_no_one_expects_is_an_error_and_no_end(worker: Worker) -> None:
    nonsense: tuple[Message, ...] = (42,)  # type: ignore[assignment]
    with pytest.raises(EngineError, match="AttributeError") as caught:
        worker.count_tokens(nonsense)
    assert not isinstance(caught.value, EngineDied)
    assert "\n" not in str(caught.value)
    assert worker.count_tokens(QUESTION) > 0


@pytest.mark.slow
def test_loading_reports_its_progress_and_can_be_stopped(demo_target: Path, demo_draft: Path) -> None:
    before, heard = children(), list[float]()
    caller = threading.current_thread()

    def until_the_second(fraction: float) -> bool:
        assert threading.current_thread() is caller
        heard.append(fraction)
        return fraction < 0.6

    with pytest.raises(Cancelled):
        Worker.open(
            OpenPlan(ModelOptions(demo_target), ModelOptions(demo_draft)), on_progress=until_the_second
        )
    assert heard == sorted(heard)
    assert 0.0 <= heard[0] < 0.5 < heard[-1] <= 1.0
    assert children() <= before


def test_loading_can_be_stopped_before_the_first_news(demo_target: Path) -> None:
    before, asked = children(), list[float]()

    def stop(fraction: float) -> bool:
        asked.append(fraction)
        return False

    with pytest.raises(Cancelled):
        Worker.open(OpenPlan(ModelOptions(demo_target)), on_progress=stop)
    assert asked == [0.0]
    assert children() <= before


@pytest.mark.slow
def test_it_reports_for_how_long_a_gpu_has_been_making_programs(open_worker: Open) -> None:
    worker = open_worker()
    assert worker.first_call_s() is None
    worker._process._deliver(FirstCall(12.0))
    assert 12.0 <= (worker.first_call_s() or 0) < 60
    worker._process._deliver(FirstCall(None))
    assert worker.first_call_s() is None
    worker._process._deliver(FirstCall(3.0))
    worker._process.kill()
    assert worker.first_call_s() is None


@pytest.mark.slow
def test_it_reports_whether_costs_are_being_measured(open_worker: Open) -> None:
    worker = open_worker()
    assert not worker.is_measuring()
    worker._process._deliver(Measuring(is_under_way=True))
    assert worker.is_measuring()
    worker._process._deliver(Measuring(is_under_way=False))
    assert not worker.is_measuring()
    worker._process._deliver(Measuring(is_under_way=True))
    worker._process.kill()
    assert not worker.is_measuring()
