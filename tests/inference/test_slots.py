"""Conversations that are saved, restored and erased by the numbers of their slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import LocalSpecError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Request
from tests import made_models
from tests.inference.runtimes import FORCED, GREEDY, LONG_STORY, OFF, answer

pytestmark = pytest.mark.slow

ONE = LONG_STORY[:900]
OTHER = LONG_STORY[1500:2400]


@contextmanager
def opened(
    target: Path,
    draft: Path | None = None,
    seats: int = 1,
    memory: int = 2**30,
    disk: int = 0,
    **options: Any,  # noqa: ANN401
) -> Iterator[Runtime]:
    one = ModelOptions(target, context=1024, threads=1, micro_batch=32, **options)
    plan = OpenPlan(one, None if draft is None else replace(one, path=draft), seats=seats)
    with Runtime.open(plan) as runtime:
        runtime.keep_conversations(memory, disk)
        yield runtime


def asked(text: str, slot: int | None, settings: EngineSettings = OFF) -> Request:
    return Request(text, GREEDY, settings, 12, seed=1, slot=slot)


def read(runtime: Runtime, request: Request) -> tuple[str, int, int]:
    """Return an answer, the tokens of its prompt that were read, and its slot."""
    text, end = answer(runtime, request)
    return text, end.summary.new_prompt_tokens, end.slot


@pytest.mark.parametrize("seats", [1, 3])
@pytest.mark.parametrize("memory", [0, 2**30])
def test_a_saved_slot_goes_on_in_another_slot_of_another_program(
    demo_target_f32: Path, demo_draft: Path, tmp_path: Path, seats: int, memory: int
) -> None:
    file = tmp_path / "one.bin"
    with opened(demo_target_f32, demo_draft, seats, memory) as runtime:
        text, new, slot = read(runtime, asked(ONE, 1, FORCED))
        assert slot == 1
        saved = runtime.save_slot(1, file)
        assert saved.tokens == new + 11
        assert saved.bytes == file.stat().st_size
        anew = read(runtime, replace(asked(f"{ONE}{text} Why?", 1, FORCED), reuses_cache=False))[0]
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]
    with opened(demo_target_f32, demo_draft, seats, memory) as runtime:
        read(runtime, asked(OTHER, 0, FORCED))
        assert runtime.restore_slot(2, file) == saved
        again, new, slot = read(runtime, asked(f"{ONE}{text} Why?", 2, FORCED))
        assert (again, slot) == (anew, 2)
        assert new < 10


@pytest.mark.parametrize("seats", [1, 3])
def test_an_erased_slot_is_read_anew_and_others_stay(
    demo_target_q8: Path, tmp_path: Path, seats: int
) -> None:
    with opened(demo_target_q8, seats=seats, disk=2**30) as runtime:
        whole = read(runtime, asked(ONE, 0))[1]
        read(runtime, asked(OTHER, 1))  # the first gives way to it
        runtime.write_before_leaving(60.0)
        assert runtime.erase_slot(0) == whole + 11
        assert runtime.erase_slot(0) == 0
        with pytest.raises(UserError, match="slot 0 holds no conversation"):
            runtime.save_slot(0, tmp_path / "none.bin")
        assert read(runtime, asked(ONE, 0))[1] == whole
        assert read(runtime, asked(OTHER, 1))[1] == 1
        assert runtime.save_slot(0, tmp_path / "first.bin").tokens == whole + 11  # wherever it is now


def test_a_prompt_that_was_only_read_is_saved(demo_target_q8: Path, tmp_path: Path) -> None:
    with opened(demo_target_q8, seats=2) as runtime:
        list(runtime.read(asked(ONE, 1)))
        tokens = runtime.save_slot(1, tmp_path / "read.bin").tokens
        assert len(runtime.encode(ONE)) == tokens


@pytest.mark.parametrize("kind", ["windowed", "hybrid"])
def test_models_that_forget_are_restored_with_their_checkpoints(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = tmp_path / "windowed.gguf"
    target = request.getfixturevalue("made_hybrid") if kind == "hybrid" else made_models.windowed(target)
    exact: dict[str, Any] = {"kv_type_k": "f32", "kv_type_v": "f32", "flash_attention": False}
    with opened(target, **exact) as runtime:
        read(runtime, asked(ONE, 3))
        runtime.save_slot(3, tmp_path / "slot.bin")
        anew = read(runtime, replace(asked(f"{ONE} Why?", 3), reuses_cache=False))[0]
    with opened(target, **exact) as runtime:
        runtime.restore_slot(0, tmp_path / "slot.bin")
        text, new, _ = read(runtime, asked(f"{ONE} Why?", 0))
        assert text == anew
        assert new < 60


def test_a_file_that_does_not_fit_leaves_the_slot_usable(
    demo_target: Path, demo_target_q8: Path, demo_draft: Path, tmp_path: Path
) -> None:
    with opened(demo_target_q8, demo_draft, 2) as runtime:
        read(runtime, asked(ONE, 0))
        runtime.save_slot(0, tmp_path / "q8.bin")
    data = (tmp_path / "q8.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(data[:-1])
    (tmp_path / "other.bin").write_bytes(b"ggsn" * 100)
    (tmp_path / "flipped.bin").write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    (tmp_path / "link.bin").symlink_to(tmp_path / "q8.bin")
    (tmp_path / "folder.bin").mkdir()
    with opened(demo_target, demo_draft, 2) as runtime:
        text, whole, _ = read(runtime, asked(OTHER, 0))
        for name, problem in (
            ("q8.bin", "of another model"),
            ("cut.bin", "not as long"),
            ("other.bin", "of another kind"),
            ("flipped.bin", "q8|other"),
            ("missing.bin", "there is no saved slot"),
            ("link.bin", "a link"),
            ("folder.bin", "a folder"),
        ):
            with pytest.raises(LocalSpecError, match=problem) as caught:
                runtime.restore_slot(0, tmp_path / name)
            assert str(tmp_path) not in str(caught.value)
        assert read(runtime, asked(OTHER, 0)) == (text, 1, 0)
        assert whole > 100
    other_layout = opened(demo_target_q8, None, 1, flash_attention=False)
    with other_layout as runtime, pytest.raises(UserError, match="of another model"):
        runtime.restore_slot(0, tmp_path / "q8.bin")
    with opened(demo_target_q8, None, 1) as runtime:  # without the draft model: its part is left out
        assert runtime.restore_slot(0, tmp_path / "q8.bin").tokens > 100
