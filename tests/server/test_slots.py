"""llama-server's slots: saving, restoring and erasing by HTTP, and what leads out of their folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.models import ModelOptions
from tests.server.running import Served, serving

FRANCE = "What is the capital of France? I was told so at school, and would like to hear it again. " * 4
GERMANY = f"{FRANCE[:200]} They were told of Germany."


@dataclass(frozen=True)
class Slots:
    """A server whose slots are saved in a folder."""

    served: Served
    folder: Path

    def act(self, slot: object, action: str, **body: object) -> Any:  # noqa: ANN401
        return self.served.post(f"/slots/{slot}?action={action}", body)

    def complete(self, prompt: str, slot: int) -> tuple[int, int]:
        """Return the tokens that were read of a prompt, and the slot that says to have answered."""
        asked = {"prompt": prompt, "id_slot": slot, "n_predict": 8, "temperature": 0}
        reply = self.served.post("/completion", asked).json()
        return reply["timings"]["prompt_n"], reply["id_slot"]


@pytest.fixture(scope="module")
def slots(demo_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slots]:
    def open_models() -> Runtime:
        runtime = Runtime.open(OpenPlan(ModelOptions(demo_target, context=512, threads=1), seats=4))
        runtime.keep_conversations(2**28)
        return runtime

    folder = tmp_path_factory.mktemp("slots")
    with serving(open_models, slots=folder) as served:
        yield Slots(served, folder)


@pytest.mark.slow
def test_a_slot_is_saved_restored_elsewhere_and_erased(slots: Slots) -> None:
    whole, slot = slots.complete(FRANCE, 1)
    assert slot == 1
    saved = slots.act(1, "save", filename="france.bin").json()
    assert saved["n_saved"] >= whole
    assert saved["n_written"] == (slots.folder / "france.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    different, _ = slots.complete(GERMANY, 1)
    assert 1 < different < whole
    restored = slots.act(0, "restore", filename="france.bin").json()
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    assert slots.complete(FRANCE, 0) == (1, 0)
    assert slots.complete(GERMANY, 1)[0] <= different
    for slot in (0, 1):
        assert slots.served.client.post(f"/slots/{slot}?action=erase").json()["n_erased"] > 40
    assert slots.complete(FRANCE, 1) == (whole, 1)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../out.bin", "/tmp/out.bin", "a/b", "a\\b", "C:a", "a\0b", ".hidden", "a" * 300, "a\n"],
)
def test_a_name_cannot_leave_the_folder(slots: Slots, name: str) -> None:
    for action in ("save", "restore"):
        reply = slots.act(0, action, filename=name)
        assert reply.status_code == 400
        assert "filename" in reply.json()["error"]["message"]


def test_what_makes_no_sense_is_refused_by_name(slots: Slots) -> None:
    assert slots.act(4, "save", filename="a.bin").status_code == 404
    assert slots.act("x", "erase").status_code == 404
    assert "action is none of" in slots.act(0, "copy").json()["error"]["message"]
    assert "filename" in slots.act(0, "save").json()["error"]["message"]
    assert "no conversation" in slots.act(3, "save", filename="a.bin").json()["error"]["message"]
    missing = slots.act(3, "restore", filename="missing.bin")
    assert missing.status_code == 400
    assert str(slots.folder) not in missing.text
    assert not list(slots.folder.glob("a.bin*"))
