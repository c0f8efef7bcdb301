"""LoRA adapters by HTTP: scales for all requests or one, and answers with others at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.models import Adapter, ModelOptions
from tests import made_models
from tests.server.running import Served, serving

Scales = list[dict[str, object]]
PROMPT = "Once upon a time, there was a little girl who looked in the glass. " * 3


@pytest.fixture(scope="module")
def adapted(demo_target_f32: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    file = made_models.adapter(tmp_path_factory.mktemp("adapters") / "a.gguf", demo_target_f32, seed=1)
    options = ModelOptions(demo_target_f32, context=512, threads=1, adapters=(Adapter(file),))

    def open_models() -> Runtime:
        runtime = Runtime.open(OpenPlan(options, seats=4))
        runtime.keep_conversations(2**28)
        return runtime

    with serving(open_models) as served:
        yield served


def text(served: Served, scales: Scales | None = None) -> str:
    asked = {"prompt": PROMPT, "n_predict": 24, "temperature": 0, "logit_bias": [[0, -100]]}
    reply = served.post("/completion", asked | ({} if scales is None else {"lora": scales}))
    assert reply.status_code == 200
    return str(reply.json()["content"])


@pytest.mark.slow
def test_each_answer_has_its_own_scales_whoever_else_is_answered(adapted: Served) -> None:
    settings: list[Scales] = [[{"id": 0, "scale": scale}] for scale in (0.0, 0.5, 1.0)]
    alone = [text(adapted, scales) for scales in settings]
    assert len(set(alone)) == 3
    assert text(adapted) == alone[2]
    assert text(adapted, []) == alone[0]
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(lambda scales: text(adapted, scales), settings * 3)) == alone * 3


@pytest.mark.slow
def test_scales_are_set_for_requests_that_name_none(adapted: Served) -> None:
    with_it, without = text(adapted), text(adapted, [])
    [known] = adapted.client.get("/lora-adapters").json()
    assert (known["id"], known["scale"], Path(known["path"]).name) == (0, 1.0, "a.gguf")
    assert adapted.post("/lora-adapters", [{"id": 0, "scale": 0}]).json() == {"success": True}
    assert adapted.client.get("/lora-adapters").json()[0]["scale"] == 0
    assert text(adapted) == without
    assert text(adapted, [{"id": 0, "scale": 1}]) == with_it
    adapted.post("/lora-adapters", [{"id": 0, "scale": 1}])
    for wrong in ([{"id": 1, "scale": 1}], [{"id": 0}], {"id": 0, "scale": 1}, [{"id": 0, "scale": "x"}]):
        assert adapted.post("/lora-adapters", wrong).status_code == 400
        asked = {"prompt": "Hi", "lora": wrong, "n_predict": 1}
        assert adapted.post("/completion", asked).status_code == 400
    assert text(adapted) == with_it


@pytest.mark.slow
def test_the_settings_of_an_answer_name_its_adapters_and_biases(adapted: Served) -> None:
    asked = {
        "prompt": "Hi",
        "n_predict": 1,
        "lora": [{"id": 0, "scale": 0.5}],
        "logit_bias": [[5, -2.5], [6, False]],
    }
    told = adapted.post("/completion", asked).json()["generation_settings"]
    assert told["lora"] == [{"id": 0, "scale": 0.5}]
    assert told["logit_bias"] == [{"token": 5, "bias": -2.5}, {"token": 6, "bias": None}]


@pytest.mark.slow
def test_an_answer_may_not_end_itself(adapted: Served) -> None:
    asked = {"prompt": "Hi", "n_predict": 40, "temperature": 0, "lora": []}
    asked["speculative"] = {"mode": "off"}  # a pass for each token
    short = adapted.post("/completion", asked).json()
    assert short["stop_type"] == "eos"
    assert not short["generation_settings"]["logit_bias"]
    long = adapted.post("/completion", asked | {"ignore_eos": True}).json()
    assert (long["stop_type"], long["tokens_predicted"]) == ("limit", 40)
    assert {entry["bias"] for entry in long["generation_settings"]["logit_bias"]} == {None}
    passes = [line for line in adapted.client.get("/metrics").text.splitlines() if "n_decode_total " in line]
    assert float(passes[-1].split()[1]) >= 40
