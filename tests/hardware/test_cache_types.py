"""Smaller types of the target's cache: proposed where they gain much, never taken unasked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.hardware.device_info import Machine
from localspec.hardware.memory.needs import CacheTypes
from localspec.hardware.placement.candidates import Placement
from localspec.hardware.placement.place import place
from localspec.models.pair_request import ModelRequest, PairRequest
from localspec.models.shape import ModelShape
from tests.hardware.machines import MIDDLE, SMALL, asking, card, cpu, machine, mixture

TIGHT = machine((card(0, 8), 450), processor=cpu(60))
WIDE = machine((card(0, 24), 450), processor=cpu(60))
Q8 = CacheTypes("q8_0", "q8_0")


def proposals(placement: Placement) -> list[str]:
    return [reason for reason in placement.reasons if "-ctk q8_0 -ctv q8_0" in reason]


def placed(where: Machine, request: PairRequest, shape: ModelShape = MIDDLE) -> Placement:
    return place(where, shape, None, request)


def test_a_large_gain_is_proposed_with_its_price_and_not_taken() -> None:
    [reason] = proposals(found := placed(TIGHT, PairRequest(context=32768)))
    taken = placed(TIGHT, asking(context=32768, cache=Q8))
    assert found.tokens_per_s is not None
    assert taken.tokens_per_s is not None
    assert taken.tokens_per_s > 1.1 * found.tokens_per_s
    assert f"write {taken.tokens_per_s:.0f} tokens/s instead of {found.tokens_per_s:.0f}" in reason
    assert "answers may differ" in reason


@pytest.mark.parametrize(
    ("where", "request_"),
    [
        (WIDE, PairRequest(context=32768)),  # all of it fits in any case
        (TIGHT, PairRequest(context=2048)),  # a small cache
        (TIGHT, asking(context=32768, cache=Q8)),  # taken already
        (TIGHT, PairRequest(context=32768, flash_attention=False)),  # quantised values are refused then
    ],
)
def test_nothing_is_proposed_without_a_gain_or_a_choice(where: Machine, request_: PairRequest) -> None:
    assert proposals(placed(where, request_)) == []


def test_nothing_is_proposed_for_heads_of_another_width() -> None:
    odd = replace(MIDDLE, heads=40, attention_width=40 * 80)
    assert proposals(placed(TIGHT, PairRequest(context=32768), odd)) == []


def test_a_larger_context_is_proposed_too() -> None:
    where = machine(processor=cpu(7))
    found = placed(where, PairRequest())
    assert found.target.context < 8192
    [reason] = proposals(found)
    assert "would allow a context of" in reason


def test_a_draft_has_a_smaller_cache_where_a_mixture_gains_by_it() -> None:
    shape, where = mixture(14, 40, 0.1), machine((card(0, 10), 450), processor=cpu(60))
    request = PairRequest(context=32768, mode="sd", draft=ModelRequest(devices=("CUDA0",)))
    kept = replace(request, draft=replace(request.draft, kv_type_k="f16", kv_type_v="f16"))
    found, usual = place(where, shape, SMALL, request), place(where, shape, SMALL, kept)
    assert (found.draft_cache, usual.draft_cache) == (Q8, CacheTypes())
    assert sum(found.target.layers) > sum(usual.target.layers)
    dense = place(WIDE, MIDDLE, SMALL, replace(request, context=8192))
    assert dense.draft_cache == CacheTypes()
