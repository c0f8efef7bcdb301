"""Conversations whose caches outlive the program: what comes back, what does not, and what it never costs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import disk_copies
from localspec.inference.runtime import Runtime
from localspec.llama.context import Context
from localspec.storage.cache_folder import CacheFolder
from localspec.storage.kept_caches import caches_dir, figures
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request
from tests import made_models
from tests.inference.runtimes import FORCED, GREEDY, LONG_STORY, OFF, QUESTION, answer
from tests.inference.test_seats import Written

pytestmark = pytest.mark.slow

SSD = EngineSettings(mode="ssd", draft_length=4, min_confidence=0.0)
MEMORY, DISK = 2**30, 2**30
EXACT: dict[str, Any] = {"kv_type_k": "f32", "kv_type_v": "f32", "flash_attention": False}
STORIES = [LONG_STORY[start : start + 1500] for start in (0, 1500)]


@contextmanager
def opened(
    target: Path,
    draft: Path | None = None,
    *,
    seats: int = 1,
    **options: Any,  # noqa: ANN401
) -> Iterator[Runtime]:
    """Open models that keep conversations on disk, and write what rests when they close."""
    values = {"context": 2048, "threads": 1, "micro_batch": 32, **options}
    one = ModelOptions(target, **values)
    plan = OpenPlan(one, None if draft is None else replace(one, path=draft), seats=seats)
    with Runtime.open(plan) as runtime:
        runtime.keep_conversations(MEMORY, DISK)
        yield runtime
        runtime.write_before_leaving(60.0)


def asked(text: str, settings: EngineSettings = OFF, kept_as: str | None = "", tokens: int = 16) -> Request:
    return Request(text, GREEDY, settings, tokens, seed=1, kept_as=kept_as)


def read(runtime: Runtime, request: Request) -> tuple[str, int]:
    """Return an answer, and the tokens of its prompt that were read."""
    text, end = answer(runtime, request)
    return text, end.summary.prompt_tokens - end.summary.cached_tokens


def anew(runtime: Runtime, request: Request) -> str:
    """Return the answer of models that have read nothing before."""
    return answer(runtime, replace(request, reuses_cache=False))[0]


@pytest.mark.parametrize(
    ("settings", "seats"), [(OFF, 1), (SSD, 1), (FORCED, 4)], ids=["off", "ssd", "seats"]
)
def test_conversations_go_on_after_a_restart_as_if_nothing_had_happened(
    demo_target_f32: Path, demo_draft: Path, settings: EngineSettings, seats: int
) -> None:
    with opened(demo_target_f32, demo_draft, seats=seats) as runtime:
        first = [read(runtime, asked(story, settings))[0] for story in STORIES]
    talks = [f"{story}{text} And then?" for story, text in zip(STORIES, first, strict=True)]
    with opened(demo_target_f32, demo_draft, seats=seats) as runtime:
        for talk in talks:
            text, new = read(runtime, asked(talk, settings))
            assert new < 20
            assert text == anew(runtime, asked(talk, settings, kept_as=None))


def test_the_draft_model_reads_nothing_again(
    demo_target_q8: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = (Message("user", STORIES[0]), Message("assistant", "Well."), *QUESTION)
    with opened(demo_target_q8, demo_draft) as runtime:
        read(runtime, replace(asked("", FORCED), prompt=talk[:1]))
    with opened(demo_target_q8, demo_draft) as runtime:
        tokens, draft, run = list[int](), runtime._contexts.draft, Context._run

        def counting(context: Context, touched: Iterable[int], rows: int, count: int) -> None:
            tokens.append(count if context is draft else 0)
            run(context, touched, rows, count)

        monkeypatch.setattr(Context, "_run", counting)
        read(runtime, replace(asked("", FORCED), prompt=talk))
        assert 0 < sum(tokens) < 100


@pytest.fixture
def windowed(tmp_path: Path) -> Path:
    return made_models.windowed(tmp_path / "windowed.gguf")


@pytest.mark.parametrize("kind", ["windowed", "made_hybrid"])
def test_states_that_are_overwritten_come_back_with_their_checkpoints(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """A question that is asked in another way continues from the end of the prompt before."""
    target = request.getfixturevalue(kind)
    with opened(target, **EXACT) as runtime:
        read(runtime, asked(STORIES[0], tokens=40))
    again = asked(f"{STORIES[0]} Why?", tokens=12)
    with opened(target, **EXACT) as runtime:
        text, new = read(runtime, again)
        assert new < 60
        assert text == anew(runtime, again)


def test_what_a_cache_was_made_with_has_to_be_the_same(
    demo_target_q8: Path, demo_target: Path, demo_draft: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "finetuned.gguf"  # the same in all but a few weights
    data = bytearray(demo_target_q8.read_bytes())
    data[-4096:] = bytes(4096)
    changed.write_bytes(data)
    with opened(demo_target_q8, demo_draft) as runtime:
        read(runtime, asked(STORIES[0]))
    again, whole = asked(f"{STORIES[0]} Why?"), 300
    for target, options in (
        (changed, dict[str, Any]()),
        (demo_target, {}),
        (demo_target_q8, {"kv_type_k": "q8_0", "kv_type_v": "q8_0"}),
        (demo_target_q8, {"flash_attention": False}),
    ):
        with opened(target, demo_draft, **options) as runtime:
            assert read(runtime, again)[1] > whole, options
    with opened(demo_target_q8, None, context=1024) as runtime:
        assert read(runtime, again)[1] < 10, "a smaller context and no draft model"


def test_another_program_or_processor_wrote_it(demo_target_q8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.inference import contexts

    with opened(demo_target_q8) as runtime:
        read(runtime, asked(STORIES[0]))
    facts = contexts.facts_here()
    for other in (replace(facts, llama_cpp="0.0"), replace(facts, processor="another")):
        monkeypatch.setattr(contexts, "facts_here", lambda other=other: other)
        with opened(demo_target_q8) as runtime:
            assert read(runtime, asked(f"{STORIES[0]} Why?", kept_as=None))[1] > 300


@pytest.mark.parametrize("seats", [1, 4])
def test_what_stays_in_memory_is_never_written(demo_target_q8: Path, seats: int) -> None:
    with opened(demo_target_q8, seats=seats) as runtime:
        for story in STORIES:
            read(runtime, asked(story, kept_as=None))
        assert runtime.writes_in_s() is None
    assert figures().count == 0


def test_a_conversation_that_rests_is_written_and_one_that_goes_on_is_not(demo_target_q8: Path) -> None:
    with opened(demo_target_q8) as runtime:
        assert runtime.writes_in_s() is None
        read(runtime, asked(STORIES[0]))
        left_s = runtime.writes_in_s()
        assert left_s is not None
        assert 0 < left_s <= disk_copies.REST_S
        runtime.write_resting()
        assert runtime.writes_in_s() is None, "until it goes on"
        read(runtime, asked(STORIES[0] + " More of it."))
        assert runtime.writes_in_s() is not None
        read(runtime, asked(STORIES[1]))  # the first one goes into memory
        read(runtime, asked(STORIES[0] + " More of it. And then?"))  # and comes back
        disk = runtime._disk
        assert disk is not None
        assert len(disk._due) == 1


def test_a_disk_that_hangs_holds_up_no_answer(demo_target_f32: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        hangs.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(CacheFolder, "write", write)
    with opened(demo_target_f32, seats=4, **EXACT) as runtime:
        expected = read(runtime, asked(STORIES[0]))[0]
        runtime.write_resting()
        assert hangs.wait(60)
        answers = [Written(runtime.for_one_of_several()) for _ in STORIES]
        for each, story in zip(answers, STORIES, strict=True):
            each.start(asked(story))
        assert answers[0].join().text == expected
        assert answers[1].join().error is None
        goes_on.set()


def test_reading_from_disk_holds_up_no_other_answer(
    demo_target_q8: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(demo_target_q8, seats=4) as runtime:
        read(runtime, asked(STORIES[0]))
    hangs, goes_on, real = threading.Event(), threading.Event(), CacheFolder.read

    def slowly(*arguments: object) -> object:
        hangs.set()
        assert goes_on.wait(60)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CacheFolder, "read", slowly)
    with opened(demo_target_q8, seats=4) as runtime:
        waits, other = (Written(runtime.for_one_of_several()) for _ in range(2))
        waits.start(asked(f"{STORIES[0]} Why?"))
        assert hangs.wait(60)
        other.start(asked(STORIES[1]))
        assert other.join().error is None
        goes_on.set()
        assert waits.join().end.summary.new_prompt_tokens < 10


def test_damage_costs_a_line_and_no_answer(demo_target_q8: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(demo_target_q8) as runtime:
        for story in STORIES:
            read(runtime, asked(story))
    for path in caches_dir().iterdir():
        data = bytearray(path.read_bytes())
        data[-1000:] = bytes(1000)
        path.write_bytes(data)
    caplog.set_level(logging.WARNING, "localspec")
    with opened(demo_target_q8) as runtime:
        for story in STORIES:
            text, new = read(runtime, asked(story, kept_as=None))
            assert new > 300
            assert text == anew(runtime, asked(story, kept_as=None))
    lines = [record.message for record in caplog.records if record.name.endswith("disk_copies")]
    assert len(lines) == 1
    assert "cannot be read" in lines[0]
    assert figures().count == 0


def test_a_full_disk_costs_a_line_and_no_answer(
    demo_target_q8: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CacheFolder, "write", full)
    caplog.set_level(logging.WARNING, "localspec")
    with opened(demo_target_q8) as runtime:
        for story in (*STORIES, STORIES[0]):
            assert read(runtime, asked(story))[0]
    lines = [record.message for record in caplog.records if record.name.endswith("disk_copies")]
    assert len(lines) == 1
    assert "No space left" in lines[0]


def test_a_chat_that_is_deleted_takes_its_files_along(demo_target_q8: Path) -> None:
    with opened(demo_target_q8) as runtime:
        for number, story in enumerate(STORIES):
            read(runtime, asked(story, kept_as=f"chat{number}"))
    assert figures().count == 2
    with opened(demo_target_q8) as runtime:
        read(runtime, asked(f"{STORIES[0]} Why? {STORIES[1][:300]}", kept_as="chat0"))
        runtime.forget_conversation("chat0")
    assert [path.stem.partition(".")[2] for path in caches_dir().iterdir()] == ["chat1"]
    with opened(demo_target_q8) as runtime:
        runtime.forget_conversation("chat0")
        read(runtime, asked(STORIES[0], kept_as="chat0"))  # it was restored, and goes on
    assert figures().count == 2
