"""Models come and go: opened when a request names them, closed to make room, when they idle, or by hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import httpx2
import pytest
from uvicorn import Server

from localspec.chat.answer_settings import SessionRequest
from localspec.errors import EngineDied, LocalSpecError, ModelFileError, UserError
from localspec.server import application, opening, served
from localspec.server.served import RouterSettings, ServedModel, ServedModels
from localspec.server.service import ServerSettings
from tests.server.running import serving_models
from tests.server.scripted_offers import ScriptedPair
from tests.server.test_doors import CHAT, sent
from tests.server.turning_models import TurningModels
from tests.waiting import until

TOKENS = 3


@dataclass
class Rig:
    """A server with pairs of made-up sizes, and threads of clients."""

    sizes: dict[str, int]
    any_name: bool = False
    idle_s: float | None = None
    most_open: int = 0
    autoload: bool = True
    lines: list[str] = field(default_factory=list)
    runtimes: dict[str, list[TurningModels]] = field(default_factory=dict)
    steps: dict[str, threading.Semaphore] = field(default_factory=dict)  # of answers, where they are held

    def __post_init__(self) -> None:
        settings = ServerSettings("auto", SessionRequest(), self.lines.append)
        self.pairs = {
            name: ScriptedPair(name, self._opens(name), settings, size) for name, size in self.sizes.items()
        }
        router = RouterSettings(
            any_name=self.any_name,
            idle_s=self.idle_s,
            most_open=self.most_open,
            autoload=self.autoload,
            offers=lambda: list(self.pairs.values()),
        )
        self.models = ServedModels(self.pairs.values(), settings, router)

    def _opens(self, name: str) -> Callable[[], TurningModels]:
        def open_models() -> TurningModels:
            models = TurningModels(steps=self.steps.get(name))
            self.runtimes.setdefault(name, []).append(models)
            return models

        return open_models

    @contextmanager
    def running(self) -> Iterator[Rig]:
        with (
            serving_models(self.models) as (self.port, self.client, self.server),
            ThreadPoolExecutor(8) as self.threads,
        ):
            yield self
            for steps in (*self.steps.values(), *(pair.may_open for pair in self.pairs.values())):
                if steps is not None:
                    steps.release(10_000)

    port: int = 0
    client: httpx2.Client = field(init=False)
    server: Server = field(init=False)
    threads: ThreadPoolExecutor = field(init=False)

    def __getitem__(self, name: str) -> ServedModel:
        found = self.models.named(name)
        assert found is not None
        return found

    def ask(self, name: str | None, path: str = CHAT, **body: object) -> httpx2.Response:
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": TOKENS}
        asked |= {} if name is None else {"model": name}
        return self.client.post(path, json=asked | body)

    def asks(self, name: str) -> Future[httpx2.Response]:
        return self.threads.submit(self.ask, name)

    def status(self) -> dict[str, str]:
        return {model.name: model.status for model in self.models.all}

    def post(self, what: str, name: str) -> httpx2.Response:
        return self.client.post(f"/models/{what}", json={"model": name})


def holds(rig: Rig, *names: str) -> None:
    """Let answers, or the opening of pairs, wait for the test."""
    for name in names:
        rig.pairs[name].may_open = threading.Semaphore(0)


def text(reply: httpx2.Response) -> str:
    return str(reply.json()["choices"][0]["message"]["content"])


def test_a_request_opens_the_pair_that_it_names() -> None:
    with Rig({"one": 4, "two": 4}).running() as rig:
        assert rig.status() == {"one": "unloaded", "two": "unloaded"}
        reply = rig.ask("two")
        assert text(reply) == TOKENS * "H"
        assert rig.status() == {"one": "unloaded", "two": "loaded"}
        assert text(rig.ask("one:coding")) == text(rig.ask("one:latest")) == text(rig.ask(None)) == "HHH"
        assert rig.status() == {"one": "loaded", "two": "loaded"}
        assert [pair.openings for pair in rig.pairs.values()] == [1, 1]
        assert any("two is open after" in line for line in rig.lines)
        assert "localspec_models_loaded 2" in rig.client.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (CHAT, '"type":"not_found_error"'),
        ("/v1/messages", '"type":"error","error":{"type":"not_found_error"'),
        ("/v1/responses", '"code":404'),
        ("/api/chat", '{"error":"there is no model tow'),
    ],
)
def test_an_unknown_name_is_refused_in_the_words_of_each_protocol(path: str, told: str) -> None:
    with Rig({"one": 4, "two": 4}).running() as rig:
        reply = rig.ask("tow", path)
        assert reply.status_code == 404
        assert told in reply.text
        assert "there are one, two" in reply.text
        assert rig.status() == {"one": "unloaded", "two": "unloaded"}


def test_without_names_any_name_means_the_one_pair() -> None:
    with Rig({"one": 4}, any_name=True).running() as rig:
        assert rig.ask("gpt-5").status_code == 200
        assert rig.post("unload", "gpt-5").status_code == 404


def test_the_one_that_was_not_used_for_the_longest_makes_room() -> None:
    with Rig({"one": 4, "two": 4, "three": 4}).running() as rig:
        for name in ("one", "two", "one", "three"):
            assert rig.ask(name).status_code == 200
        assert rig.status() == {"one": "loaded", "two": "unloaded", "three": "loaded"}
        assert any("two was closed to make room for three" in line for line in rig.lines)


def test_what_answers_is_not_closed_and_what_waits_comes_in_order() -> None:
    rig = Rig({"one": 6, "two": 6, "three": 6})
    rig.steps["one"] = threading.Semaphore(0)
    with rig.running():
        busy = rig.asks("one")
        until(lambda: rig["one"].uses == 1 and rig["one"].opened is not None)
        second = rig.asks("two")
        until(lambda: rig["one"].leaving == 1)  # planned: `one` closes for it as soon as it has answered
        third = rig.asks("three")
        until(lambda: rig["three"].is_opening)
        late = rig.asks("one")  # waits, so that `two` has its turn some time
        until(lambda: len(rig["one"].waiting) == 1)
        assert rig.status() == {"one": "loaded", "two": "loading", "three": "loading"}
        rig.steps["one"].release(10_000)
        assert [text(each.result(20)) for each in (busy, second, third, late)] == ["HHH"] * 4
    closed = [line.split("  ", 1)[1] for line in rig.lines if "to make room" in line]
    assert closed == [
        "one was closed to make room for two",
        "two was closed to make room for three",
        "three was closed to make room for one",
    ]


def test_an_idle_one_closes_before_one_that_answers() -> None:
    rig = Rig({"one": 4, "two": 4, "three": 4})
    rig.steps["one"] = threading.Semaphore(0)
    with rig.running():
        busy = rig.asks("one")
        until(lambda: rig["one"].uses == 1 and rig["one"].opened is not None)
        assert rig.ask("two").status_code == rig.ask("three").status_code == 200
        assert rig.status() == {"one": "loaded", "two": "unloaded", "three": "loaded"}
        rig.steps["one"].release(10_000)
        assert text(busy.result(20)) == "HHH"


def test_a_pair_that_fits_nowhere_is_refused_and_nothing_closes() -> None:
    with Rig({"one": 4, "huge": 11}).running() as rig:
        rig.ask("one")
        reply = rig.ask("huge")
        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith("there is not enough memory: 11 of 10")
        assert rig.status() == {"one": "loaded", "huge": "unloaded"}


def test_requests_for_a_model_that_opens_share_its_opening() -> None:
    rig = Rig({"one": 4})
    holds(rig, "one")
    with rig.running():
        asked = [rig.asks("one") for _ in range(4)]
        until(lambda: len(rig["one"].waiting) == 4)
        assert "llamacpp:requests_deferred 4" in rig.client.get("/metrics").text
        gate = rig.pairs["one"].may_open
        assert gate is not None
        gate.release(100)
        assert [text(each.result(20)) for each in asked] == ["HHH"] * 4
        assert rig.pairs["one"].openings == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EngineDied("the model process was ended by the system (SIGKILL)"), 503),
        (ModelFileError("one.gguf is damaged", "download it again"), 400),
    ],
)
def test_an_opening_that_fails_is_told_and_tried_again(error: LocalSpecError, status: int) -> None:
    rig = Rig({"one": 4})
    rig.pairs["one"].fails = error
    with rig.running():
        assert rig.ask("one").status_code == status
        listed = rig.client.get("/models").json()["data"][0]["status"]
        assert listed == {"value": "unloaded", "failed": True, "error": str(error)}
        rig.pairs["one"].fails = None
        assert rig.ask("one").status_code == 200
        assert rig.client.get("/models").json()["data"][0]["status"]["value"] == "loaded"
    assert any(f"one cannot be opened: {error}" in line for line in rig.lines)


def test_an_opening_goes_on_when_its_client_leaves() -> None:
    rig = Rig({"one": 4})
    holds(rig, "one")
    with rig.running():
        with closing(socket.create_connection(("127.0.0.1", rig.port), timeout=20)) as client:
            client.sendall(sent({"model": "one", "messages": [{"role": "user", "content": "Hi"}]}))
            until(rig.pairs["one"].is_opening.is_set)
        until(lambda: not rig["one"].waiting)
        gate = rig.pairs["one"].may_open
        assert gate is not None
        gate.release(100)
        until(lambda: rig["one"].is_ready)
        assert rig["one"].uses == 0
        assert rig.ask("one").status_code == 200
        assert rig.pairs["one"].openings == 1


def test_a_client_that_leaves_while_it_waits_for_room_closes_nothing() -> None:
    rig = Rig({"one": 6, "two": 6})
    rig.steps["one"] = threading.Semaphore(0)
    with rig.running():
        busy = rig.asks("one")
        until(lambda: rig["one"].uses == 1 and rig["one"].opened is not None)
        with closing(socket.create_connection(("127.0.0.1", rig.port), timeout=20)) as client:
            client.sendall(sent({"model": "two", "messages": [{"role": "user", "content": "Hi"}]}))
            until(lambda: rig["one"].leaving == 1)
        until(lambda: not rig["two"].is_opening)
        rig.steps["one"].release(10_000)
        assert text(busy.result(20)) == "HHH"
        assert rig.status() == {"one": "loaded", "two": "unloaded"}
        assert rig.ask("one").status_code == 200
        assert rig.pairs["one"].openings == 1


@pytest.mark.parametrize(
    ("path", "body", "sign"),
    [
        (CHAT, {}, ": opening one: 0%"),
        ("/v1/messages", {}, ": opening one: 0%"),
        (
            "/api/chat",
            {"options": {"num_predict": TOKENS}},
            '"message":{"role":"assistant","content":""},"done":false',
        ),
        ("/api/generate", {"prompt": "Hi", "options": {"num_predict": TOKENS}}, '"response":"","done":false'),
    ],
)
def test_a_stream_tells_how_its_model_is_being_opened(
    monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object], sign: str
) -> None:
    monkeypatch.setattr(opening, "BEGIN_S", 0.01)
    monkeypatch.setattr(opening, "OPENING_S", 0.01)
    rig = Rig({"one": 4})
    holds(rig, "one")
    asked = {"model": "one", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with rig.running(), rig.client.stream("POST", path, json=asked | {"max_tokens": TOKENS} | body) as reply:
        assert reply.status_code == 200
        pieces = reply.iter_text()
        heard = ""
        gate = rig.pairs["one"].may_open
        assert gate is not None
        while sign not in heard:
            heard += next(pieces)
        gate.release(5)
        while path == CHAT and ": opening one: 50%" not in heard:
            heard += next(pieces)
        gate.release(100)
        heard += "".join(pieces)
    assert heard.count("H") >= 1
    assert rig["one"].uses == 0


@pytest.mark.parametrize(
    ("path", "failed"), [(CHAT, '"code":503'), ("/v1/messages", "event: error"), ("/api/chat", '{"error":')]
)
def test_a_failure_after_such_a_beginning_is_an_event(
    monkeypatch: pytest.MonkeyPatch, path: str, failed: str
) -> None:
    monkeypatch.setattr(opening, "BEGIN_S", 0.01)
    rig = Rig({"one": 4})
    holds(rig, "one")
    rig.pairs["one"].fails = EngineDied("it died")
    asked = {"model": "one", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with rig.running(), rig.client.stream("POST", path, json=asked) as reply:
        pieces = reply.iter_text()
        heard = next(pieces)
        gate = rig.pairs["one"].may_open
        assert gate is not None
        gate.release(100)
        heard += "".join(pieces)
        until(lambda: any("503" in line for line in rig.lines))
    assert failed in heard
    assert "it died" in heard


def test_models_are_loaded_and_unloaded_by_hand() -> None:
    with Rig({"one": 4, "two": 4}).running() as rig:
        assert rig.post("load", "one:coding").json() == {"success": True}
        until(lambda: rig["one"].is_ready)
        again = rig.post("load", "one")
        assert (again.status_code, again.json()["error"]["message"]) == (400, "one is loaded already")
        listed = {each["id"]: each for each in rig.client.get("/models").json()["data"]}
        assert listed["one"]["status"] == {"value": "loaded", "memory": {"CPU": 4}}
        assert "one:coding" in listed["one"]["aliases"]
        assert listed["one"]["capabilities"]["tools"] is True
        assert rig.post("unload", "one").json() == {"success": True}
        until(lambda: rig["one"].status == "unloaded")
        assert rig.post("unload", "one").status_code == 400
        assert rig.post("load", "three").status_code == rig.post("unload", "three").status_code == 404
        assert rig.client.post("/models/load", json={}).status_code == 400


def test_an_answer_may_end_before_its_model_is_unloaded() -> None:
    rig = Rig({"one": 4})
    rig.steps["one"] = threading.Semaphore(0)
    with rig.running():
        busy = rig.asks("one")
        until(lambda: rig["one"].uses == 1 and rig["one"].opened is not None)
        assert rig.post("unload", "one").json() == {"success": True}
        late = rig.asks("one")
        until(lambda: len(rig["one"].waiting) == 1)
        rig.steps["one"].release(10_000)
        assert text(busy.result(20)) == text(late.result(20)) == "HHH"
        assert rig.pairs["one"].openings == 2


def test_an_answer_that_takes_too_long_is_cut_by_unloading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "STOP_S", 0.02)
    rig = Rig({"one": 4})
    rig.steps["one"] = threading.Semaphore(0)
    with rig.running():
        busy = rig.asks("one")
        until(lambda: rig["one"].uses == 1 and rig["one"].opened is not None)
        rig.post("unload", "one")
        reply = busy.result(20)
        rig.steps["one"].release(10_000)
        assert (reply.status_code, reply.json()["error"]["message"]) == (503, "one was unloaded")
        until(lambda: rig.status() == {"one": "unloaded"})
        assert rig.ask("one").status_code == 200


def test_unloading_stops_an_opening() -> None:
    rig = Rig({"one": 4})
    holds(rig, "one")
    with rig.running():
        waits = rig.asks("one")
        until(rig.pairs["one"].is_opening.is_set)
        assert rig.post("unload", "one").json() == {"success": True}
        assert waits.result(20).status_code == 503
        assert "was unloaded while it was being opened" in waits.result().text
        again = rig.asks("one")  # perhaps before the first opening has ended
        gate = rig.pairs["one"].may_open
        until(lambda: rig.pairs["one"].openings == 2)
        assert gate is not None
        gate.release(100)
        assert text(again.result(20)) == "HHH"


def test_a_model_that_idles_is_closed_and_opens_again() -> None:
    rig = Rig({"one": 4}, idle_s=0.05)
    rig.steps["one"] = threading.Semaphore(0)
    with rig.running():
        busy = rig.asks("one")
        until(lambda: rig["one"].uses == 1 and rig["one"].opened is not None)
        rig.models.all[0].used_at -= 10  # its answer takes longer than it may idle
        rig.steps["one"].release(10_000)
        assert text(busy.result(20)) == "HHH"
        until(lambda: rig.status() == {"one": "unloaded"})
        assert rig.client.get("/props").json()["is_sleeping"] is True  # which opens nothing
        assert rig.client.post("/engine/memory", json=None).json() == []
        assert rig.status() == {"one": "unloaded"}
        assert rig.ask("one").status_code == 200
        assert rig.pairs["one"].openings == 2
    assert any("one was closed after" in line for line in rig.lines)


def test_the_end_of_the_server_stops_an_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "DRAIN_S", 0.05)
    rig = Rig({"one": 4, "two": 4})
    holds(rig, "one")
    with rig.running():
        waits = rig.asks("one")
        until(rig.pairs["one"].is_opening.is_set)
        queued = rig.asks("two")
        until(lambda: rig["two"].is_opening)
        rig.server.should_exit = True
        for reply in (waits.result(20), queued.result(20)):
            assert (reply.status_code, reply.json()["error"]["message"]) == (
                503,
                "the server is being stopped",
            )
        # which the end of the block would let go on
        until(lambda: not (rig["one"].is_opening or rig["two"].is_opening))
    assert rig.status() == {"one": "unloaded", "two": "unloaded"}
    assert rig.runtimes == {}


def test_no_more_models_are_open_than_allowed() -> None:
    rig = Rig({"one": 1, "two": 1, "three": 1}, most_open=2)
    rig.steps["one"] = threading.Semaphore(0)
    with rig.running():
        busy = rig.asks("one")
        until(lambda: rig["one"].uses == 1 and rig["one"].opened is not None)
        assert rig.ask("two").status_code == 200
        assert all(reply.result(20).status_code == 200 for reply in [rig.asks("three") for _ in range(3)])
        assert rig.status() == {"one": "loaded", "two": "unloaded", "three": "loaded"}
        rig.steps["one"].release(10_000)
        assert text(busy.result(20)) == "HHH"
        props = rig.client.get("/props").json()
        told = (props["role"], props["max_instances"], props["models_autoload"])
        assert told == ("router", 2, True)
        assert rig.client.get("/props", params={"model": "one"}).json()["model_alias"] == "one"


def test_a_request_that_leaves_costs_no_other_model_its_place() -> None:
    rig = Rig({"one": 1, "two": 1}, most_open=1)
    rig.steps["one"] = threading.Semaphore(0)
    with rig.running():
        busy = rig.asks("one")
        until(lambda: rig["one"].uses == 1 and rig["one"].opened is not None)
        with pytest.raises(httpx2.TimeoutException):
            rig.client.post(CHAT, json={"model": "two", "messages": []}, timeout=0.05)
        until(lambda: not rig["two"].is_opening)
        rig.steps["one"].release(10_000)
        assert text(busy.result(20)) == "HHH"
        assert rig.status() == {"one": "loaded", "two": "unloaded"}


def test_without_autoload_models_open_by_hand_or_where_a_request_asks_for_it() -> None:
    with Rig({"one": 1, "two": 1}, autoload=False).running() as rig:
        reply = rig.ask("one")
        assert (reply.status_code, reply.json()["error"]["message"]) == (
            400,
            "one is not loaded; POST /models/load opens it",
        )
        assert rig.post("load", "one").json() == {"success": True}
        until(lambda: rig.status()["one"] == "loaded")
        assert text(rig.ask("one")) == "HHH"
        assert rig.ask("two", f"{CHAT}?autoload=true").status_code == 200
        assert rig.ask("two", f"{CHAT}?autoload=false").status_code == 200  # it is open
        assert rig.post("unload", "one").json() == {"success": True}
        until(lambda: rig.status()["one"] == "unloaded")
        assert rig.ask("one").status_code == 400


def test_a_model_that_idled_wakes_without_autoload() -> None:
    with Rig({"one": 1}, autoload=False, idle_s=0.02).running() as rig:
        rig.post("load", "one")
        until(lambda: rig["one"].sleeps)
        assert text(rig.ask("one")) == "HHH"


def test_the_list_is_read_anew_when_asked() -> None:
    rig = Rig({"one": 1, "two": 1, "three": 1})
    with rig.running():
        for name in ("one", "two"):
            assert rig.ask(name).status_code == 200
        hidden = rig.pairs["three"]
        hidden.is_listed = False
        changed = ScriptedPair("two", rig.pairs["two"].open_models, rig.pairs["two"].settings, size=2)
        new = ScriptedPair("four", changed.open_models, changed.settings)
        rig.pairs = {"two": changed, "three": hidden, "four": new}
        assert [each["id"] for each in rig.client.get("/models").json()["data"]] == ["one", "two"]
        listed = rig.client.get("/models?reload=1").json()["data"]
        assert [each["id"] for each in listed] == ["two", "four"]
        until(lambda: rig.status() == {"two": "unloaded", "three": "unloaded", "four": "unloaded"})
        until(lambda: sum("was closed as asked" in line for line in rig.lines) == 2)
        assert rig.ask("one").status_code == 404
        assert rig.ask("three").status_code == rig.ask("two").status_code == 200
        assert rig["two"].held.by_device == {"CPU": 2}


def test_a_list_that_cannot_be_read_stays_as_it_was() -> None:
    rig = Rig({"one": 1})

    def fails() -> list[ScriptedPair]:
        raise UserError("presets.ini, line 3: this is no line", "correct it")

    rig.models.settings = replace(rig.models.settings, offers=fails)
    with rig.running():
        reply = rig.client.get("/models?reload=1")
        assert reply.status_code == 400
        assert "presets.ini, line 3" in reply.json()["error"]["message"]
        assert rig.ask("one").status_code == 200
