"""A draft distilled from a GGUF target, here the bundled one, where the `train` extra is installed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from localspec.demo import bundled_pair
from localspec.llama.model import Model
from localspec.models.pairing import compare_vocabularies
from localspec.types.models import ModelOptions
from training.answers import Conversation, Writer, save
from training.documents import Document
from training.made.coding import made_coding
from training.made.requests import Requests
from training.many import ManySequences

torch = pytest.importorskip("torch", exc_type=ImportError)

TARGET = bundled_pair()[0]
SHAPE = "--dim 64 --layers 1 --ffn 64 --context 128 --seq 64 --batch-tokens 256 --tokens 12000 --fp32".split()


@pytest.fixture(scope="module")
def written() -> list[Conversation]:
    """What the bundled target answered to requests about code, four at a time."""
    documents: list[Document] = list(made_coding(random.Random(1), 60))
    model = Model.open(ModelOptions(TARGET, devices=()))
    found: list[Conversation] = []
    with ManySequences(model, 4, 768, threads=1) as context:
        writer = Writer(model, context, Requests(documents, random.Random(1)), seed=1, count=4)
        while len(found) < 8:
            found += writer.step()
    model.close()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, written: list[Conversation]) -> Path:
    """A folder in which a draft has been distilled from these answers, and exported."""
    from training import distil, export_distilled

    folder = tmp_path_factory.mktemp("distilling")
    (folder / "answers").mkdir()
    for number in range(2):
        save(folder / "answers" / f"001-{number:05}.npz", written)
    distil.main([str(folder), "--target", str(TARGET), "--out", str(folder), *SHAPE])
    draft = [str(folder / "draft.pt"), "--target", str(TARGET), "--out", str(folder / "draft.gguf")]
    export_distilled.main([*draft, "--type", "f32", "--acceptance", "0.4"])
    return folder


def test_every_written_token_has_its_candidates(written: list[Conversation]) -> None:
    for each in written:
        assert len(each.candidates) == len(each.ids) - each.prompt > 0
        best = [int(top[0]) for top, _ in each.candidates]
        if each.temperature == 0:
            assert best == each.ids[each.prompt :]


def test_side_by_side_a_model_computes_what_it_computes_alone(written: list[Conversation]) -> None:
    from training.scorer import Scorer

    with Scorer(TARGET, threads=1) as scorer:
        for each in written[:3]:
            rows = scorer.logits(each.ids)[each.prompt - 1 : -1]
            logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
            kept = np.stack([chances for _, chances in each.candidates])
            best = np.stack([top for top, _ in each.candidates])
            np.testing.assert_allclose(np.take_along_axis(logs, best, 1)[:, 0], kept[:, 0], atol=0.05)


def test_distilling_makes_the_draft_agree(folder: Path) -> None:
    from training.distil import Agreement, first_checkpoint, parser
    from training.model import Checkpoint
    from training.teacher_text import TeacherText

    agreement = Agreement(TeacherText.read(sorted((folder / "answers").glob("*.npz"))), context=128)
    untrained = parser().parse_args([str(folder), "--target", str(TARGET), "--out", str(folder), *SHAPE])
    before = agreement(first_checkpoint(untrained).model)
    after = agreement(Checkpoint.load(folder / "draft.pt").model)
    assert after["agreement"] > before["agreement"] + 0.1
    assert after["overlap"] > before["overlap"] + 0.1


def test_the_draft_has_the_target_s_tokens(folder: Path) -> None:
    models = [Model.open(ModelOptions(path, devices=())) for path in (TARGET, folder / "draft.gguf")]
    compare_vocabularies(models[0].vocabulary, models[1].vocabulary)
    assert models[0].template.source == models[1].template.source
    assert models[0].end_tokens == models[1].end_tokens
    for model in models:
        model.close()


def test_llama_cpp_computes_what_was_trained(folder: Path) -> None:
    from training.model import Checkpoint
    from training.scorer import Scorer

    ids = list(range(300, 360))
    model = Checkpoint.load(folder / "draft.pt").model
    with Scorer(folder / "draft.gguf", threads=1, context=128) as scorer, torch.no_grad():
        np.testing.assert_allclose(scorer.logits(ids), model(torch.tensor([ids]))[0].numpy(), atol=0.05)


def test_training_can_continue_from_the_file(folder: Path) -> None:
    from training.import_gguf import read_gguf
    from training.model import Checkpoint

    before, after = Checkpoint.load(folder / "draft.pt"), read_gguf(folder / "draft.gguf")
    assert (after.model.cfg.dim, after.tokens) == (before.model.cfg.dim, before.tokens)
    ids = torch.tensor([list(range(300, 340))])
    with torch.no_grad():
        np.testing.assert_allclose(after.model(ids).numpy(), before.model(ids).numpy(), atol=0.05)


def test_a_file_is_written_again_with_another_acceptance(folder: Path, tmp_path: Path) -> None:
    from training import export_distilled

    again = tmp_path / "again.gguf"
    given = [str(folder / "draft.gguf"), "--target", str(TARGET), "--out", str(again), "--type", "f32"]
    export_distilled.main([*given, "--acceptance", "0.25"])
    files = (folder / "draft.gguf", again, TARGET)
    models = [Model.open(ModelOptions(path, devices=())) for path in files]
    assert [model.header.acceptance for model in models] == [pytest.approx(0.4), 0.25, None]
    assert models[0].header.tensors == models[1].header.tensors
    for model in models:
        model.close()


def test_ordinary_text_is_nothing_that_the_target_wrote(tmp_path: Path) -> None:
    from training.plain_text import write_plain_text
    from training.teacher_text import TeacherText

    text = "".join(Document("gsm8k", f"Question {number}.").packed() for number in range(50))
    (tmp_path / "corpus.txt").write_text(text, encoding="utf-8")
    write_plain_text(tmp_path / "plain.npz", TARGET, 2000, seed=1)
    read = TeacherText.read([tmp_path / "plain.npz"])
    assert len(read.ids) > 100
    assert not read.written.any()


def test_every_process_of_a_run_reads_windows_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from training.loop import Windows
    from training.workers import own_seed

    def first_windows(rank: str | None) -> list[int]:
        monkeypatch.delenv("RANK", raising=False)
        if rank is not None:
            monkeypatch.setenv("RANK", rank)
        taken: list[int] = Windows(100_000, own_seed(7)).take(8, 64)[:, 0].tolist()
        return taken

    alone, first, second = map(first_windows, (None, "0", "1"))
    assert alone == first
    assert not set(first) & set(second)


def test_without_answers_the_program_says_so(tmp_path: Path) -> None:
    from training import distil

    with pytest.raises(SystemExit, match="too few answers"):
        distil.main([str(tmp_path), "--target", str(TARGET), "--out", str(tmp_path), *SHAPE])
