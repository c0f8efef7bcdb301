"""When idle models rest: on battery, and while other programs are at work."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import psutil
import pytest

from localspec.inference.worker.rest import Surroundings

Times = namedtuple("Times", "user system idle iowait guest")
Battery = namedtuple("Battery", "percent secsleft power_plugged")


@dataclass
class Machine:
    """Two cores, of which programs use some."""

    user: float = 100.0
    idle: float = 100.0
    own: float = 50.0
    battery: Battery | None = None

    def passes(self, seconds: float, *, own: float, others: float) -> None:
        self.own += own
        self.user += own + others
        self.idle += 2 * seconds - own - others


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(made.user, 0.0, made.idle, 0.0, 0.0))
    monkeypatch.setattr(psutil, "sensors_battery", lambda: made.battery, raising=False)
    monkeypatch.setattr("time.process_time", lambda: made.own)
    return made


@pytest.mark.parametrize(("others", "rests"), [(0.0, False), (0.4, False), (0.6, True), (1.0, True)])
def test_models_rest_while_others_need_the_processor(machine: Machine, others: float, *, rests: bool) -> None:
    around = Surroundings(uses_processor=True)
    machine.passes(1.0, own=1.0, others=others)
    assert bool(around.call_for_rest()) is rests


def test_models_on_gpus_do_not_mind_others(machine: Machine) -> None:
    around = Surroundings(uses_processor=False)
    machine.passes(1.0, own=0.1, others=1.8)
    assert not around.call_for_rest()


def test_a_moment_says_nothing_about_others(machine: Machine) -> None:
    around = Surroundings(uses_processor=True)
    machine.passes(0.1, own=0.0, others=0.2)
    assert not around.call_for_rest()
    machine.passes(0.5, own=0.0, others=1.0)
    assert around.call_for_rest()
    machine.passes(1.0, own=1.9, others=0.0)
    assert not around.call_for_rest()


@pytest.mark.parametrize(
    ("battery", "rests"),
    [
        (None, False),
        (Battery(80, 1, True), False),
        (Battery(80, 1, False), True),
        (Battery(80, 1, None), False),
    ],
)
def test_models_rest_on_battery(machine: Machine, battery: Battery | None, *, rests: bool) -> None:
    machine.battery = battery
    assert bool(Surroundings(uses_processor=False).call_for_rest()) is rests


@pytest.mark.parametrize("error", [AttributeError, NotImplementedError, OSError])
@pytest.mark.usefixtures("machine")
def test_a_machine_that_knows_nothing_of_batteries_has_none(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(psutil, "sensors_battery", fail)
    assert not Surroundings(uses_processor=False).call_for_rest()


def test_this_machine_can_be_looked_at() -> None:
    assert isinstance(Surroundings(uses_processor=True).call_for_rest(), str)
