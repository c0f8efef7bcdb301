"""Streams of conversations go on without their clients, who read them again or end them."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx2
import pytest

from localspec.server import resuming
from tests.server.running import Served, serving
from tests.server.test_doors import CHAT
from tests.server.test_served import Rig, holds
from tests.server.turning_models import TurningModels
from tests.waiting import until

ID = "chat-1::user/repo:Q8_0"
NAME = {"X-Conversation-Id": ID}
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 8}
PATH = "/v1/stream"


def texts(stream: str) -> str:
    """Return the text of a stream of chat completions."""
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def read(served: Served, at: int = 0) -> httpx2.Response:
    return served.client.get(PATH, params={"conv_id": ID, "from": at})


def looked_up(served: Served, *ids: str) -> list[dict[str, Any]]:
    return list(served.post("/v1/streams/lookup", {"conversation_ids": ids}).json())


def test_a_stream_is_read_again_from_any_byte() -> None:
    with serving(TurningModels) as served:
        first = served.post(CHAT, ASKED, NAME)
        assert texts(first.text) == 8 * "H"
        again = read(served)
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["content-type"] == first.headers["content-type"]
        assert read(served, 10).content == first.content[10:]
        (told,) = looked_up(served, "chat-1", ID, "other")
        assert (told["conversation_id"], told["is_done"]) == (ID, True)
        assert told["total_bytes"] == len(first.content)
        assert served.client.delete(PATH, params={"conv_id": ID}).status_code == 204
        assert read(served).status_code == 404
        assert looked_up(served, ID) == []
        assert served.client.delete(PATH, params={"conv_id": ID}).status_code == 204  # as often as one likes


def test_an_answer_goes_on_without_its_client_until_it_is_stopped() -> None:
    steps = threading.Semaphore(0)
    models = TurningModels(steps=steps)
    with serving(lambda: models) as served:
        with served.client.stream("POST", CHAT, json=ASKED, headers=NAME) as reply:
            assert reply.status_code == 200
        until(lambda: bool(served.service.queue.jobs()[0]))
        (told,) = looked_up(served, ID)
        assert not told["is_done"]
        steps.release(100)
        assert texts(read(served).text) == 8 * "H"
        steps = models.steps = threading.Semaphore(0)
        with served.client.stream("POST", CHAT, json=ASKED, headers=NAME):  # in place of the first
            until(lambda: bool(served.service.queue.jobs()[0]))
            assert served.client.delete(PATH, params={"conv_id": ID}).status_code == 204
            until(models.cancels.is_set)
            steps.release(100)
            until(lambda: not served.service.queue.jobs()[0])
        assert len(models.written) < 16


def test_without_the_header_an_answer_ends_with_its_client() -> None:
    models = TurningModels(steps=threading.Semaphore(0))
    with serving(lambda: models) as served:
        with served.client.stream("POST", CHAT, json=ASKED):
            until(lambda: bool(served.service.queue.jobs()[0]))
        until(models.cancels.is_set)
        assert read(served).status_code == 404
        assert models.steps is not None
        models.steps.release(100)


def test_a_stop_while_the_model_opens_ends_the_request() -> None:
    rig = Rig({"one": 1})
    holds(rig, "one")
    with rig.running():
        waits = rig.threads.submit(rig.client.post, CHAT, json=ASKED | {"model": "one"}, headers=NAME)
        until(lambda: rig["one"].is_opening)
        query = {"conv_id": ID}
        assert rig.client.get(PATH, params=query).status_code == 503
        assert rig.client.delete(PATH, params=query).status_code == 204
        reply = waits.result(20)
        assert (reply.status_code, "cancelled" in reply.text) == (400, True)
        assert rig.client.get(PATH, params=query).status_code == 404
        until(lambda: not rig["one"].waiting)


def test_the_first_bytes_of_a_long_stream_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MAX_BYTES", 100)
    with serving(TurningModels) as served:
        whole = served.post(CHAT, ASKED, NAME).content
        size = looked_up(served, ID)[0]["total_bytes"]
        assert read(served).status_code == 400
        assert read(served, size - 100).content == whole[-100:]
        assert read(served, size).content == b""


def test_old_streams_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MAX_STREAMS", 2)
    with serving(TurningModels) as served:
        for number in range(4):
            served.post(CHAT, ASKED, {"X-Conversation-Id": f"chat-{number}"})
        found = looked_up(served, *(f"chat-{number}" for number in range(4)))
        assert [each["conversation_id"] for each in found] == ["chat-2", "chat-3"]
        monkeypatch.setattr(resuming, "KEPT_S", 0.0)
        assert looked_up(served, "chat-2", "chat-3") == []


@pytest.mark.parametrize(
    ("query", "complaint"),
    [("", "conv_id names no conversation"), (f"?conv_id={ID}&from=-1", "from is not the number of a byte")],
)
def test_wrong_addresses_are_refused(query: str, complaint: str) -> None:
    with serving(TurningModels) as served:
        reply = served.client.get(PATH + query)
        assert reply.status_code == 400
        assert complaint in reply.text


def test_a_request_that_is_wrong_is_refused_as_without_a_conversation() -> None:
    with serving(TurningModels) as served:
        reply = served.post(CHAT, ASKED | {"temperature": "hot"}, NAME)
        assert reply.status_code == 400
        assert "temperature" in reply.json()["error"]["message"]
        assert read(served).status_code == 404
