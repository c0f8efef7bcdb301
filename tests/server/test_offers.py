"""The models that `serve --models` offers, by their names, and what their files say."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import gguf
import pytest

from localspec.app import offered as offered_module
from localspec.app.offered import ModelSources, Offered, OfferedEncoder, OfferedPair, encoder, offered
from localspec.chat.answer_settings import SessionRequest
from localspec.cli.serve import parser
from localspec.cli.shared.catalogue import ServedCatalogue
from localspec.errors import UserError
from localspec.hardware.placement.room import HeldMemory
from localspec.models.local import find_models
from localspec.models.pair_request import ModelRequest, PairRequest
from localspec.server.offers import ChatOffer, EncoderOffer, PairSettings, named_offers
from localspec.server.served import OfferedModel, RouterSettings, ServedModels
from localspec.server.service import EncoderService, ServerSettings
from localspec.storage.config import NamedPair
from tests.llama import tiny
from tests.server.scripted_offers import PROFILES

SERVER = ServerSettings("auto", SessionRequest())
SETTINGS = PairSettings(SERVER, 4)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def pooled(recipe: tiny.Recipe) -> None:
        recipe.writer.add_pooling_type(gguf.PoolingType.MEAN)

    return tiny.llama(tmp_path_factory.mktemp("models") / "vectors.gguf", adjust=pooled)


def served(each: Sequence[Offered]) -> ServedModels:
    return served_offers(named_offers(each, SETTINGS, PROFILES))


def served_offers(offers: Sequence[OfferedModel]) -> ServedModels:
    return ServedModels(offers, SERVER, RouterSettings(any_name=False))


def test_what_embeds_counts_for_the_server_that_offers_it(vectors: Path) -> None:
    (embeddings,) = named_offers([OfferedEncoder("v", vectors)], SETTINGS, PROFILES)
    opened = embeddings.prepare([], lambda _share: True).open(lambda _share: True)
    assert isinstance(opened, EncoderService)
    before = SERVER.totals["passes"]
    opened.count(3, 12, 0.5)
    assert SERVER.totals["passes"] - before == 3
    opened.close()


def test_the_table_names_pairs_and_models_for_embeddings(
    demo_target: Path, demo_draft: Path, vectors: Path
) -> None:
    pairs = (
        NamedPair("large", str(demo_target), str(demo_draft), 4096),
        NamedPair("alone", str(demo_target)),
        NamedPair("vectors", embeddings=str(vectors)),
    )
    large, alone, embeddings = offered(PairRequest(context=2048, mode="ngram"), ModelSources(pairs=pairs))
    assert isinstance(large, OfferedPair)
    assert isinstance(alone, OfferedPair)
    assert (large.request.target.name, large.request.draft.name) == (str(demo_target), str(demo_draft))
    assert (large.request.context, large.request.mode, large.finds_draft) == (4096, "ngram", False)
    assert (alone.request.context, alone.request.draft.name) == (2048, None)
    assert embeddings == OfferedEncoder("vectors", vectors)
    with pytest.raises(UserError, match="no model `missing`"):
        offered(PairRequest(), ModelSources(pairs=(NamedPair("vectors", embeddings="missing"),)))


def test_without_a_table_the_models_on_disk_are_offered(
    demo_target: Path, demo_draft: Path, vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    found = find_models([tmp_path, vectors.parent], bundled=[demo_target, demo_draft], places=[])
    monkeypatch.setattr(offered_module, "on_this_computer", lambda: found)
    first = OfferedPair("mine", PairRequest(ModelRequest(str(demo_target))))
    assert [each.name for each in offered(PairRequest(), ModelSources(), first, demo_target)] == [
        "mine",
        "vectors",
    ]
    pair, embeddings = sorted(offered(PairRequest(), ModelSources()), key=lambda each: each.name)
    assert isinstance(pair, OfferedPair)
    assert (pair.name, pair.finds_draft) == ("demo-target", True)
    assert embeddings == OfferedEncoder("vectors", vectors)


def test_profiles_stand_behind_a_colon(demo_target: Path, vectors: Path) -> None:
    request = PairRequest(ModelRequest(str(demo_target)))
    models = served(
        [OfferedPair("a", request), OfferedPair("b:coding", request), OfferedEncoder("v", vectors)]
    )
    a, b, v = models.all
    for name, model in {"a": a, "a:coding": a, "b:coding": b, "b:coding:general": b, "coding": a}.items():
        assert models.find(name, "chat") is model
        profile = model.offer.profiles[name]
        assert profile.name == ("a:coding" if name == "coding" else name)
    assert a.offer.profiles["a"].task == PROFILES["auto"].task
    assert models.find(None, "chat") is a
    assert models.find(None, "embeddings") is models.find("v:latest", "embeddings") is v
    for name, status in (("v", 400), ("b", 404), ("a:nothing", 404)):
        with pytest.raises(Exception, match=f"{status}: ") as refused:
            models.find(name, "chat")
        assert getattr(refused.value, "status_code", None) == status


def test_files_say_what_a_closed_model_can(
    demo_target: Path, demo_draft: Path, vectors: Path, tmp_path: Path
) -> None:
    template = tmp_path / "thinks.jinja"
    template.write_text("{% if tools %}{% endif %}{% if enable_thinking %}<think>{% endif %}")
    request = PairRequest(ModelRequest(str(demo_target)), ModelRequest(str(demo_draft)))
    plain = ChatOffer(request, SETTINGS, PROFILES, ("a",)).describe()
    assert (plain.target.parameters, plain.target.context) == (4_229_568, 1024)
    assert plain.draft is not None
    assert (plain.takes_tools, plain.thinks) == (False, False)
    thinking = PairRequest(ModelRequest(str(demo_target)), chat_template=template)
    able = ChatOffer(thinking, SETTINGS, PROFILES, ("a",)).describe()
    assert (able.takes_tools, able.thinks, able.draft) == (True, True, None)
    missing = PairRequest(ModelRequest(str(tmp_path / "gone.gguf")))
    with pytest.raises(UserError, match=r"gone\.gguf"):
        ChatOffer(missing, SETTINGS, PROFILES, ("a",)).describe()
    assert EncoderOffer("v", vectors).describe().target.path == vectors


@pytest.mark.slow
def test_real_models_open_and_close(demo_target: Path, demo_draft: Path, vectors: Path) -> None:
    request = PairRequest(
        ModelRequest(str(demo_target), threads=1), ModelRequest(str(demo_draft)), context=512
    )
    shares: list[float] = []

    def on_progress(share: float) -> bool:
        shares.append(share)
        return True

    prepared = ChatOffer(request, SETTINGS, PROFILES, ("a",)).prepare([HeldMemory()], on_progress)
    assert prepared.closes == 0
    assert prepared.held.by_device["CPU"] > 8 * 2**20
    service = prepared.open(on_progress)
    assert shares
    service.close()
    embeddings = EncoderOffer("v", vectors).prepare([prepared.held], on_progress)
    embeddings.open(on_progress).close()


def test_presets_go_first_and_hide_the_files_that_they_open(
    demo_target: Path, demo_draft: Path, vectors: Path, tmp_path: Path
) -> None:
    ini = tmp_path / "models.ini"
    ini.write_text(
        f"[*]\nc = 256\ntemp = 0.5\n[mine]\nmodel = {demo_target}\nmodel-draft = {demo_draft}\nc = 512\n"
        "temp = 0.25\nparallel = 2\nalias = short\ndedup-cache-models = 1\n"
        f"[vectors-too]\nmodel = {vectors}\nembedding = true\n[other]\nload-on-startup = 1\n",
        "utf-8",
    )
    (tmp_path / "demo-target.gguf").symlink_to(demo_target)
    shutil.copy(demo_target, tmp_path / "other.gguf")
    shutil.copy(vectors, tmp_path / "vectors.gguf")
    argv = ["--models-preset", str(ini), "--models-dir", str(tmp_path), "-n", "7"]
    catalogue = ServedCatalogue(argv, parser(), SETTINGS, PROFILES, None, ())
    models = served_offers(catalogue.offers())
    listed = [model.name for model in models.all if model.offer.is_listed]
    assert listed == ["mine", "vectors-too", "other", "vectors"]
    assert catalogue.opened_at_start() == ("other",)
    mine, hidden, other = (
        models.find(name, "chat").offer for name in ("short:coding", "demo-target", "other")
    )
    assert isinstance(mine, ChatOffer)
    assert isinstance(hidden, ChatOffer)
    assert isinstance(other, ChatOffer)
    assert (mine.request.context, hidden.request.context) == (512, 256)
    assert other.request.target.name == str(tmp_path / "other.gguf")
    asked = mine.settings.server.asked
    assert (asked.sampling["temperature"], asked.answer.max_tokens, mine.settings.parallel) == (0.25, 7, 2)
    assert hidden.settings.server.asked.sampling["temperature"] == 0.5
    assert catalogue.offers() == [
        model.offer for model in models.all
    ]  # so nothing closes when it is read anew


def test_a_model_without_a_head_ranks_nothing(vectors: Path) -> None:
    assert encoder(vectors, "embeddings") == OfferedEncoder("vectors", vectors)
    with pytest.raises(UserError, match="no head that ranks"):
        encoder(vectors, "rerank")
