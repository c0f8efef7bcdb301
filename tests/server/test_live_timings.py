"""Progress and figures in streams: each chunk has them if asked for, in every protocol that has chunks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from tests.server.running import Served

TEXT = "Once upon a time there was a small house near a wood, and nobody had lived in it for years."
BOTH = {"return_progress": True, "timings_per_token": True}
MESSAGES = [{"role": "user", "content": TEXT}]
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 6}),
    "text": ("/v1/completions", {"prompt": TEXT, "max_tokens": 6}),
    "completion": ("/completion", {"prompt": TEXT, "n_predict": 6}),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 6}),
}
forms = pytest.mark.parametrize(("path", "body"), FORMS.values(), ids=FORMS)


def chunks(served: Served, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = served.post(path, {**body, "stream": True, "temperature": 0}).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def grew(chunk: Mapping[str, Any]) -> bool:
    """Return whether a chunk has a piece of the text."""
    choices = chunk.get("choices") or [{}]
    said = choices[0].get("text") or choices[0].get("delta", {}).get("content")
    return bool(said or chunk.get("content") or chunk.get("type") == "response.output_text.delta")


@forms
def test_reading_is_told_from_its_start_to_its_end(path: str, body: dict[str, Any], served: Served) -> None:
    chunks(served, path, body)  # the caches have most of it from now on
    found = chunks(served, path, body | BOTH)
    told = [chunk["prompt_progress"] for chunk in found if "prompt_progress" in chunk]
    assert told[0]["processed"] == told[0]["cache"] > 0
    assert told[-1]["processed"] == told[-1]["total"] > told[-1]["cache"]
    assert all(a["processed"] < b["processed"] and a["total"] == b["total"] for a, b in pairwise(told))
    assert found.index(next(filter(grew, found))) > found.index(
        next(chunk for chunk in found if "prompt_progress" in chunk)
    )
    if path == "/v1/responses":
        assert {chunk["type"] for chunk in found if "prompt_progress" in chunk} == {"response.in_progress"}


@forms
def test_each_chunk_has_the_figures_so_far(path: str, body: dict[str, Any], served: Served) -> None:
    found = chunks(served, path, body | BOTH)
    timings = [chunk["timings"] for chunk in found if "timings" in chunk]
    assert all("timings" in chunk for chunk in found if grew(chunk) or "prompt_progress" in chunk)
    first, last = timings[0], timings[-1]
    assert (first["prompt_n"], first["prompt_ms"], first["predicted_n"], first["predicted_ms"]) == (
        0,
        0,
        0,
        0,
    )
    assert (last["predicted_n"], last["prompt_n"] + last["cache_n"] > 10) == (6, True)
    live = timings[:-1]  # the last ones are those of the whole answer
    for name in ("prompt_ms", "prompt_n", "predicted_n", "predicted_ms"):
        assert all(a[name] <= b[name] for a, b in pairwise(live))
    assert max(each["predicted_n"] for each in live) > 0


@forms
def test_nothing_of_it_comes_unasked(path: str, body: dict[str, Any], served: Served) -> None:
    found = chunks(served, path, body)
    assert not any("prompt_progress" in chunk for chunk in found)
    assert not any("timings" in chunk for chunk in found if grew(chunk))
    whole = served.post(path, body | BOTH).json()
    assert "prompt_progress" not in whole


def test_each_of_several_answers_has_figures_of_its_own(served: Served) -> None:
    path, body = FORMS["chat"]
    found = chunks(served, path, body | BOTH | {"n": 2})
    for number in (0, 1):
        own = [chunk for chunk in found if chunk["choices"][0]["index"] == number]
        assert next(chunk["timings"]["predicted_n"] for chunk in own if "timings" in chunk) == 0
        assert own[-1]["timings"]["predicted_n"] == 6
