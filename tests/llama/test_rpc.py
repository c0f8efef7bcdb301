"""Devices of other machines: what is asked before llama.cpp asks, and models on a server of this machine."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Timer

import psutil
import pytest

from localspec.app.recommendation import surroundings
from localspec.child_process import values_of
from localspec.cli import main as command_line
from localspec.errors import Cancelled, ServerLost, UserError
from localspec.hardware import devices
from localspec.hardware.device_info import DeviceInfo, Machine, MemoryRate
from localspec.hardware.machine import known_machine
from localspec.hardware.memory.needs import LayerSplit, MemoryRequest, estimate, exact
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.hardware.placement.place import place
from localspec.hardware.placement.plan import placed_as
from localspec.inference import worker
from localspec.inference.worker.client import Worker
from localspec.llama import rpc
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.rpc import Endpoint, endpoints, probe_server
from localspec.models.pair_request import ModelRequest, PairRequest
from localspec.models.shape import read_shape
from localspec.types.events import Finished, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request, Sampling
from tests.benchmarks.line import Line
from tests.inference.runtimes import text_of
from tests.inference.worker.processes import ENDLESS
from tests.llama.servers import free_port, sharing, use_servers

TIMEOUT_S = 60.0
GIB = 2**30
HELLO = b"\x03" + bytes(7) + bytes([7, 0, 0])
SETTINGS = (
    EngineSettings(mode="off"),
    EngineSettings(mode="ngram"),
    EngineSettings(mode="sd", draft_length=5, min_confidence=0.0),
    EngineSettings(mode="ssd", draft_length=4, fan_out_budget=6, min_confidence=0.0),
)
TOKENS = 40
PATIENT_CHILD = (
    "from localspec.inference.worker import child; child._SILENCE_S = 1.0; child.main(tells_log={})"
)
PROMPTS = ("Write a function that adds two numbers.",)


@contextmanager
def answering(*replies: bytes) -> Iterator[Endpoint]:
    """Serve these bytes to the first client, one reply after each message, and then none."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        try:
            connection = listener.accept()[0]
        except OSError:
            return
        held.append(connection)
        for reply in replies:
            connection.recv(4096)
            connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with closing(listener):
        yield Endpoint("127.0.0.1", listener.getsockname()[1])
    thread.join(TIMEOUT_S)
    for connection in held:
        connection.close()


def test_servers_are_read_with_the_default_port() -> None:
    assert endpoints("tower, 10.0.0.5:7,tower") == (Endpoint("tower", rpc.PORT), Endpoint("10.0.0.5", 7))


@pytest.mark.parametrize("text", ["tower:", ":5", "tower:0x5", "tower:70000", "[::1]:5", "a,,b"])
def test_other_programs_at_the_port_are_reported(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["devices", "--rpc", text]) == 2
    assert "is not a server address; use --rpc HOST:PORT" in capsys.readouterr().err.replace("\n  hint:", ";")


@pytest.mark.parametrize(
    "text", ["[::1]:50052", "::1:50052", "::1", "[::1]", "fe80::1%eth0:50052", "tower,[2001:db8::5]:50052"]
)
def test_an_address_that_llama_cpp_cannot_reach_is_reported(text: str) -> None:
    with pytest.raises(UserError, match="is not a server") as caught:
        endpoints(text)
    assert "llama.cpp takes no IPv6" in caught.value.hint


def test_a_name_with_addresses_that_llama_cpp_cannot_reach_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_up(host: str, _port: int, family: int = 0, *_more: int, **_named: int) -> list[object]:
        if host != "six" or family == socket.AF_INET:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 5, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(UserError, match="six has IPv6 addresses only"):
        probe_server(Endpoint("six", 5))
    with pytest.raises(UserError, match="cannot resolve host `nowhere`"):
        probe_server(Endpoint("nowhere", 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replies", "told"),
    [
        ((), "is busy or not responding"),
        ((b"\x03" + bytes(7) + bytes([6, 0, 0]),), "speaks version 6.0 of the RPC protocol, and this is 7.0"),
        ((b"\x03" + bytes(7) + bytes([7, 1, 0]),), "speaks version 7.1"),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(5000),), "speaks version"),
        ((HELLO, b"\x04" + bytes(7) + bytes(4)), "offers 0 devices"),
        ((HELLO, b"\x02" + bytes(7) + bytes(2)), "is not a supported RPC server"),
        ((HELLO,), "no answer from"),
    ],
)
def test_a_server_that_cannot_serve_is_reported_within_the_limit(
    replies: tuple[bytes, ...], told: str
) -> None:
    with answering(*replies) as endpoint, pytest.raises(UserError, match=told) as caught:
        probe_server(endpoint, 0.3)
    assert caught.value.hint


@pytest.mark.parametrize("verb", [["serve"], ["run", "Hi"], ["devices"]])
def test_servers_can_be_named_to_every_verb(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([*verb, "--rpc", "tower:"]) == 2
    assert "`tower:` is not a server address" in capsys.readouterr().err


def test_none_does_without_the_servers_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rpc.VARIABLE, "nowhere.invalid")
    assert command_line.main(["devices", "--no-measure"]) == 2
    assert command_line.main(["devices", "--no-measure", "--rpc", "none"]) == 0
    assert rpc.named() == ()


def test_an_unreachable_server_is_reported() -> None:
    with pytest.raises(UserError, match="nothing is listening at"):
        probe_server(Endpoint("127.0.0.1", free_port()))
    with pytest.raises(UserError, match=r"cannot resolve host `nowhere\.invalid`"):
        probe_server(Endpoint("nowhere.invalid"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "tower"], "is not an IPv4 address"),
        (["--host", "0.0.0.0"], "lets anyone who reaches it use this machine"),
        (["--device", "CUDA9"], "no device is called 'CUDA9'|lacks the RPC backend"),
    ],
)
def test_devices_that_cannot_be_shared_are_reported(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["share", *arguments]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert re.search(told, line)


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    with sharing() as address:
        yield address


@pytest.fixture
def servers(shared: str, monkeypatch: pytest.MonkeyPatch) -> str:
    use_servers(shared, monkeypatch)
    return shared


def texts(models: Worker) -> dict[str, str]:
    return {
        f"{settings.mode}: {prompt}": text(models, prompt, settings)
        for settings in SETTINGS
        for prompt in PROMPTS
        if settings.mode in models.modes
    }


def text(models: Worker, prompt: str, settings: EngineSettings) -> str:
    return text_of([*models.generate(request(prompt, settings))])


def request(prompt: str, settings: EngineSettings) -> Request:
    return Request((Message("user", prompt),), Sampling(0.0), settings, TOKENS)


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_greedy_answers_are_those_of_this_machine_wherever_the_models_are(
    demo_target: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = (ModelOptions(path, context=512, threads=1) for path in (demo_target, demo_draft))
    there = [replace(options, devices=("RPC0",)) for options in (target, draft)]
    target, draft = (replace(options, devices=()) for options in (target, draft))
    at_home = replace(there[0], output_at_home=True)
    split = replace(at_home, gpu_layers=4)  # of its six, and what follows them
    found: list[dict[str, str]] = []
    for pair in ((there[0], draft), (target, there[1]), there, (at_home, draft), (split, draft)):
        with Worker.open(OpenPlan(*pair)) as models:
            found.append(texts(models))
    monkeypatch.delenv(rpc.VARIABLE)
    with Worker.open(OpenPlan(target, draft)) as models:
        here = texts(models)
    assert [len(each) for each in found] == [4, 4, 3, 4, 4]  # no one drafts ahead beside a target on one line
    assert all(each == {key: here[key] for key in each} for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, 4])
def test_with_the_output_at_home_no_row_of_logits_comes_over_the_line(
    layers: int | None, servers: str, demo_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(int(servers.partition(":")[2]), one_way_s=0.0, rate=0.0)
    line.start()
    monkeypatch.setenv(rpc.VARIABLE, f"127.0.0.1:{line.port}")
    shape, per_token = read_shape(demo_target), {}
    for at_home in (False, True):
        options = ModelOptions(demo_target, 512, layers, ("RPC0",), threads=1, output_at_home=at_home)
        with Worker.open(OpenPlan(options)) as models:
            before = line.carried["down"]
            *_, finished = models.generate(request(PROMPTS[0], SETTINGS[0]))
            assert isinstance(finished, Finished)
            per_token[at_home] = (line.carried["down"] - before) / finished.summary.tokens
    line.close()
    assert per_token[False] > 4 * shape.vocabulary
    assert per_token[True] < 4 * 4 * shape.width  # which the prompt's tokens took as well


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_memory_is_reckoned_where_the_output_is(demo_target: Path) -> None:
    options = ModelOptions(demo_target, 2048, devices=("RPC0",), output_at_home=True)
    split = LayerSplit(("RPC0",), (6,), output_at_home=True)
    guessed = estimate(read_shape(demo_target), MemoryRequest(split, 2048))
    (taken,) = exact(options)
    for each, real in zip(guessed, sorted(taken, key=lambda need: need.device == "CPU"), strict=True):
        assert each.device == real.device
        assert each.weights == pytest.approx(real.weights, rel=0.02)
        assert each.total == pytest.approx(real.total, rel=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("layers", [None, 2])
def test_layers_of_a_file_with_an_mtp_head_are_where_the_plan_says(
    made_hybrid: Path, layers: int | None
) -> None:
    """llama.cpp counts prediction layers among those of `-ngl`, which a plan must add."""
    shape, card = read_shape(made_hybrid), DeviceInfo("RPC0", "gpu", "RPC", "", 8 * GIB, 8 * GIB)
    cpu = DeviceInfo("CPU", "cpu", "CPU", "", 8 * GIB, 8 * GIB, cores=2)
    machine = Machine((card, cpu), (MemoryRate("RPC0", 900e9), MemoryRate("CPU", 20e9)))
    on_device = len(shape.layers) if layers is None else layers
    asked = None if layers is None else layers + shape.prediction_layers + 1
    request = PairRequest(target=ModelRequest(devices=("RPC0",), gpu_layers=asked))
    found = place(machine, shape, None, request)
    plan = placed_as(found, OpenPlan(ModelOptions(made_hybrid)))
    assert found.target.layers == (on_device,)
    (taken,) = exact(plan.target)
    planned = {need.device: need.weights for need in found.target.needs}
    assert {need.device: need.weights for need in taken} == pytest.approx(planned, rel=0.02)


@pytest.mark.slow
def test_a_server_that_ends_ends_the_answer_in_one_sentence(servers: str, demo_target: Path) -> None:
    options = ModelOptions(demo_target, context=512, threads=1, devices=("RPC0",))
    port = int(servers.partition(":")[2])
    with Worker.open(OpenPlan(options)) as models:
        used = (each for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == port)
        psutil.Process(next(each.pid for each in used if each.pid)).kill()
        with pytest.raises(ServerLost, match="the machine that computes for us is gone"):
            text(models, "Hello, who are you?", SETTINGS[0])
    wait_for(servers)
    with Worker.open(OpenPlan(options)) as models:  # it was started again
        assert text(models, "Hello, who are you?", SETTINGS[0])


@contextmanager
def asleep(address: str) -> Iterator[None]:
    """Stop the server that listens there, and let it continue."""
    port = int(address.partition(":")[2])
    used = (each for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == port)
    server = psutil.Process(next(each.pid for each in used if each.pid and each.status == "LISTEN"))
    server.suspend()
    try:
        yield
    finally:
        server.resume()


@pytest.mark.slow
def test_an_answer_is_dropped_soon_where_its_server_sleeps_and_the_next_one_comes(
    servers: str, demo_target: Path
) -> None:
    options = ModelOptions(demo_target, context=16384, threads=1, devices=("RPC0",))
    with Worker.open(OpenPlan(options)) as models:
        events, texts = models.generate(ENDLESS), list[str]()
        texts += [event.text for event in islice(events, 20) if isinstance(event, TextDelta)]
        with asleep(servers):
            Timer(0.2, models.cancel).start()
            began_s = time.monotonic()
            with pytest.raises(ServerLost, match=rf"^{servers} has not answered for \d s$"):
                texts += [event.text for event in events if isinstance(event, TextDelta)]
            assert time.monotonic() - began_s < 10.0  # it would be a minute
        assert texts
    wait_for(servers)
    with Worker.open(OpenPlan(options)) as models:
        assert text(models, "Hello, who are you?", SETTINGS[0])


@contextmanager
def line_to(address: str, one_way_s: float, rate: float) -> Iterator[str]:
    """Lead to a server by a slow line, in a process of its own, whose end closes what it holds."""
    made = f"Line({address.partition(':')[2]}, {one_way_s}, {rate})"
    code = (
        f"from tests.benchmarks.line import Line; line = {made}; line.start(); print(line.port, flush=True)"
    )
    command = [sys.executable, "-c", f"{code}; input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture
def slow(servers: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Lead to the server by a line on which loading takes a while."""
    monkeypatch.setattr(worker, "_CODE", PATIENT_CHILD)
    with line_to(servers, 0.0, 4e6) as address:
        monkeypatch.setenv(rpc.VARIABLE, address)
        yield address


@pytest.mark.slow
def test_a_server_that_falls_asleep_while_models_open_there_is_dropped(
    servers: str, slow: str, demo_target: Path
) -> None:
    options = ModelOptions(demo_target, context=512, threads=1, devices=("RPC0",))
    seen = list[float]()
    with ExitStack() as sleeping:

        def on_progress(fraction: float) -> bool:
            if fraction > 0.2 and not seen:
                sleeping.enter_context(asleep(servers))
                seen.append(fraction)
            return True

        with pytest.raises(ServerLost, match=rf"^{slow} has not answered for \d s$"):
            Worker.open(OpenPlan(options), on_progress=on_progress)
    assert seen[0] < 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
def test_opening_at_a_server_that_sleeps_stops_at_once(servers: str, demo_target: Path) -> None:
    options, stopped = ModelOptions(demo_target, context=512, threads=1, devices=("RPC0",)), list[float]()
    with ExitStack() as sleeping:

        def on_progress(fraction: float) -> bool:
            if fraction > 0.2 and not stopped:
                sleeping.enter_context(asleep(servers))
                stopped.append(fraction)
            return not stopped

        with pytest.raises(Cancelled):  # and no error of a server that has not answered for long
            Worker.open(OpenPlan(options), on_progress=on_progress)


def reading(path: Path) -> Iterator[float]:
    """Yield how long a text takes of which no one wants to know how it could continue."""
    with closing(Model.open(ModelOptions(path, context=512, threads=1, devices=("RPC0",)))) as model:
        context = Context(model, model.options)
        for _ in range(4):  # a call of a shape that is new takes round trips of its own
            started = time.perf_counter()
            context.evaluate(range(100, 164), 0)
        yield time.perf_counter() - started


@pytest.mark.slow
def test_a_prompt_counts_as_read_once_the_server_has_read_it(
    servers: str, demo_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_way_s = 0.02
    with line_to(servers, one_way_s, 0.0) as address:
        monkeypatch.setenv(rpc.VARIABLE, address)
        (seconds,) = values_of(reading, TIMEOUT_S, demo_target)
    assert seconds >= 2 * one_way_s


def wait_for(address: str) -> None:
    (endpoint,) = endpoints(address)
    ends = time.monotonic() + TIMEOUT_S
    while time.monotonic() < ends:
        try:
            probe_server(endpoint)
        except UserError:
            continue
        return


def test_a_probe_reports_devices_and_the_connection(servers: str) -> None:
    found = devices.look().machine.devices
    (remote,) = (device for device in found if device.kind == "remote")
    assert (remote.id, remote.name, remote.backend) == ("RPC0", servers, "RPC")
    assert remote.round_trip_s is not None
    assert 0 < remote.round_trip_s < 1


@pytest.mark.slow
def test_one_program_at_a_time(servers: str, demo_target: Path) -> None:
    with Worker.open(OpenPlan(ModelOptions(demo_target, context=256, threads=1, devices=("RPC0",)))):
        with pytest.raises(UserError, match="is busy"):
            probe_server(endpoints(servers)[0], 0.3)
        with pytest.raises(UserError, match="is busy"):
            list(values_of(devices.ask, TIMEOUT_S))


@pytest.mark.slow
def test_what_else_could_be_opened_is_reported_while_this_program_uses_the_server(
    servers: str, demo_target: Path
) -> None:
    known_machine(may_measure=False)  # as opening does
    with Worker.open(
        OpenPlan(ModelOptions(demo_target, context=256, threads=1, devices=("RPC0",)))
    ) as models:
        assert models.target.servers == (servers,)
        machine, _, _ = surroundings((models.target,))
    assert "RPC0" in [device.id for device in machine.devices]
