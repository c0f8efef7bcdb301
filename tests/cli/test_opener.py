"""Who opens the models of the screen, and what becomes of that when they come home."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from localspec.app.opener import AttachedOpener, ChatModels, LocalOpener, OpeningWatch, SshOpener
from localspec.app.opening import OpenedPair, find_files
from localspec.app.tuning import StopSignal, TuneChoice
from localspec.chat.answer_settings import nothing_known
from localspec.demo import bundled_pair
from localspec.errors import UserError
from localspec.hardware import machine as machine_module
from localspec.inference.interface import OpenModels
from localspec.llama import rpc
from localspec.models.pair_request import ModelChoice, ModelRequest, PairRequest
from localspec.storage.profiles import Profiles
from localspec.types.models import ModelInfo
from tests.hardware.machines import machine
from tests.scripted import ScriptedModels, says

TARGET, DRAFT = bundled_pair()
REMOTE = PairRequest(ModelRequest(devices=("RPC0",)), ModelRequest(devices=()))


@pytest.fixture(autouse=True)
def invented_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "known_machine", lambda **_: machine())


class Scripted(LocalOpener):
    """Opens scripted models, of a request or of another machine's."""

    def __init__(self, *requests: PairRequest | None) -> None:
        super().__init__(PairRequest())
        self.requests = list(requests)

    def open(self, choice: ModelChoice | None, watch: OpeningWatch) -> OpenedPair[OpenModels]:
        request = self.requests.pop(0)
        if not watch.on_progress(0.5):
            raise UserError("it does not open")
        return OpenedPair(ScriptedModels(says("Hi")), nothing_known, request)


def test_what_was_tuned_follows_what_is_open_and_not_what_was_tried() -> None:
    models = ChatModels(Scripted(PairRequest(), None), Profiles(()))
    with pytest.raises(UserError, match="no models are open"):
        list(models.tune(TuneChoice(()), StopSignal(), lambda _line: None))
    opened = models.open(None, OpeningWatch())
    with pytest.raises(UserError, match="it does not open"):
        models.open(ModelChoice(TARGET, None), OpeningWatch(lambda _share: False))
    assert models.opened is opened


def test_models_of_another_machine_are_not_tuned_here() -> None:
    for opener, way in (
        (SshOpener("tower", [], "localspec", PairRequest()), "localspec tune --host tower"),
        (AttachedOpener("127.0.0.1:9", None), "on the machine of the server"),
    ):
        models = ChatModels(opener, Profiles(()))
        with pytest.raises(UserError) as refused:
            list(models.tune(TuneChoice(()), StopSignal(), lambda _line: None))
        assert way in refused.value.hint
        assert not models.run_was_stopped()


def test_ssh_does_not_look_into_paths_of_the_other_machine_before_models_come_home() -> None:
    there = SshOpener("tower", [], "localspec", PairRequest(ModelRequest("/there/a.gguf")))
    home = there.at_home()
    assert home is not None
    assert home.at_home() is None
    with pytest.raises(UserError, match=r"a\.gguf"):
        home.open(None, OpeningWatch())


@pytest.mark.slow
def test_who_comes_home_leaves_the_devices_of_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rpc.VARIABLE, "127.0.0.1:9")
    models = ChatModels(LocalOpener(REMOTE), Profiles(()))
    assert models.opener.at_home() is not None
    assert os.environ[rpc.VARIABLE] == "127.0.0.1:9"  # until something opens without them
    models.use_local_models()
    with closing(models.open(ModelChoice(TARGET, DRAFT), OpeningWatch()).models) as opened:
        assert os.environ[rpc.VARIABLE] == ""
        assert opened.target.devices == ("CPU",)
    assert models.opener.at_home() is None


@pytest.mark.slow
def test_a_choice_without_a_draft_is_tuned_without_the_head_in_its_file(made_hybrid: Path) -> None:
    models = LocalOpener(PairRequest())
    with closing(models.open(ModelChoice(made_hybrid, None), OpeningWatch()).models) as opened:
        assert opened.draft is None
    request = PairRequest().choosing(ModelChoice(made_hybrid, None))
    assert find_files(request, OpeningWatch()).draft is None


def test_models_that_are_attached_to_offer_no_others() -> None:
    attached = AttachedOpener("127.0.0.1:9", None)
    others: tuple[ModelInfo, ...] = ()
    assert (attached.offers_choices, [*attached.choices(others)], attached.at_home()) == (False, [], None)
