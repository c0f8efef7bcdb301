"""Simulated rates of made-up answers stay what they were, so that a study that continues finds its own again.

A change to the policy or to the simulator that is meant to move them writes them again.
"""

from __future__ import annotations

import random

import pytest

from localspec.decoding.measurements import Overhead
from localspec.tuning.simulator.simulator import Simulator
from localspec.types.request import Mode
from tests.tuning.test_simulate import GREEDY, MODES, USUAL, costs_of, drawn, trace_of
from tests.tuning.virtual import toy

OVERHEADS = tuple(Overhead(mode, 2e-4, 1e-4, 1.1, 1.2, 3e-4) for mode in MODES)
RATES: dict[tuple[Mode, int], tuple[float, float, float]] = {
    ("off", 0): (30.12048192771065, 30.12048192771065, 1.0),
    ("ngram", 1): (30.12048192771065, 30.12048192771065, 1.0),
    ("sd", 2): (77.13305582864417, 50.416893590161216, 2.0483633714136453),
    ("sd", 3): (51.42675841742716, 43.14143761894351, 1.6328230304757134),
    ("sd", 4): (69.20561339632991, 40.60251377732743, 2.071170419794273),
    ("ssd", 5): (111.77206077369003, 78.28325269126329, 2.6413756426165564),
    ("ssd", 6): (56.61012796767404, 50.43197695059192, 1.826181809268179),
    ("ssd", 7): (96.53036070723488, 77.30067780029347, 2.5805334257014176),
    ("ssd", 8): (93.87231244099851, 65.28811608743449, 2.639971651311127),
}


@pytest.mark.parametrize(("mode", "seed"), RATES)
def test_a_rate_is_what_it_was(mode: Mode, seed: int) -> None:
    settings, varied = drawn(random.Random(seed), mode), toy(150, 0.8, varied=True)
    simulators = (
        Simulator(trace_of(GREEDY), costs_of(overheads=OVERHEADS)),
        Simulator(trace_of(USUAL, ended=True), costs_of(ratio=0.2, overheads=OVERHEADS), seed=1),
        Simulator(varied.trace(), varied.costs()),
    )
    assert [simulator.rate(settings) for simulator in simulators] == pytest.approx(
        RATES[mode, seed], rel=1e-9
    )
