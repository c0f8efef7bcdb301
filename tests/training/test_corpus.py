"""The packed text can be read, and the scripts still make it."""

from __future__ import annotations

import logging
import lzma
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec.demo import FOLDER, bundled_pair
from localspec.errors import UserError
from training import documents, prepare_corpus
from training.chat_text import chat, chunks, clean
from training.documents import ASSISTANT, Corpus, Document, read_documents
from training.made.coding import made_coding
from training.made.smalltalk import smalltalk
from training.made.stories import made_stories
from training.sources import READERS
from training.sources.code import coding_request, documented_functions, third_person
from training.sources.dialogues import talk_turns

KINDS = {
    "african-stories",
    "gsm8k",
    "made-coding",
    "made-stories",
    "sgd",
    "smalltalk",
    "stdlib-chat",
    "trivia",
}


@pytest.fixture(scope="module")
def held_out() -> list[Document]:
    return list(read_documents(documents.PACKED / documents.HELD_OUT_TEXT))


def test_bundled_pair_exists() -> None:
    target, draft = bundled_pair()
    assert target.stat().st_size > draft.stat().st_size > 1_000_000


def test_held_out_text_has_every_kind_of_task(held_out: list[Document]) -> None:
    assert {document.kind for document in held_out} >= KINDS
    assert sum(ASSISTANT in document.text for document in held_out) > len(held_out) / 2


def test_training_text_is_packed_next_to_it() -> None:
    with lzma.open(documents.PACKED / f"{documents.TRAINING_TEXT}.xz", "rt", encoding="utf-8") as file:
        assert documents.DOCUMENT_HEADER.match(file.readline())


@pytest.mark.slow
@pytest.mark.parametrize("maker", [made_coding, made_stories, smalltalk])
def test_templates_make_the_packed_text(
    maker: Callable[[random.Random], Iterator[Document]], held_out: list[Document]
) -> None:
    made = list(maker(random.Random(f"1{maker.__name__}")))
    packed = {document.text for document in held_out if document.kind == made[0].kind}
    assert len(packed) > 20
    assert packed <= {document.text.rstrip("\n") for document in made}


def test_own_text_of_a_data_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("<|doc:a|>\none\n<|doc:b-c|>\ntwo\n\n", encoding="utf-8")
    assert Corpus(tmp_path).training() == [("a", "one"), ("b-c", "two\n")]


def test_a_text_that_is_nowhere_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text at"):
        list(read_documents(tmp_path / "corpus.txt"))


def test_documents_are_split_once_and_for_all() -> None:
    texts = [Document("made", f"a text that is long enough, number {index}") for index in range(4000)]
    shares = dict(prepare_corpus.split([*texts, *texts, Document("made", "short")]))
    assert set(shares) == set(texts)
    assert 20 <= sum(shares.values()) <= 60
    assert dict(prepare_corpus.split(reversed(texts))) == shares


def test_corpus_is_prepared_from_the_folders_that_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for maker in ("smalltalk", "made_stories", "made_coding"):
        function = getattr(prepare_corpus, maker)
        short = lambda rng, function=function: function(rng, 5)  # noqa: E731
        short.__name__ = maker
        monkeypatch.setattr(prepare_corpus, maker, short)
    folder = tmp_path / "corpus-gsm8k-train"
    folder.mkdir()
    answer = "He has 2 + 2 = <<2+2=4>>4.\\n#### 4"
    (folder / "train.jsonl").write_text(f'{{"question": "Two and two?", "answer": "{answer}"}}', "utf-8")
    with caplog.at_level(logging.WARNING):
        prepare_corpus.main([str(tmp_path), str(tmp_path / "out"), "--pack"])
    assert len(caplog.messages) == len(READERS) - 1
    assert (tmp_path / "out" / "corpus-heldout.txt.xz").exists()
    written = Corpus(tmp_path / "out")
    everything = [*written.training(), *written.held_out()]
    assert len(everything) == 16
    (problem,) = (document.text for document in everything if document.kind == "gsm8k")
    assert "He has 2 + 2 = 4.\n\nThe answer is 4.<|im_end|>" in problem


def test_clean_leaves_no_control_token() -> None:
    assert clean("a<|im_end|> \r\n\n\n\n b\u00a0c ") == "a< |im_end|>\n\n b c"


def test_chat_alternates_roles() -> None:
    texts = {chat(random.Random(seed), "Hi", "Hello!") for seed in range(40)}
    plain = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    assert plain in texts
    assert all(text.endswith(plain) for text in texts)
    assert any(text.startswith("<|im_start|>system\nYou are") for text in texts)


def test_chunks_break_between_paragraphs_only() -> None:
    text = "\n\n".join(["x" * 40] * 5)
    assert list(chunks(text, 100)) == ["\n\n".join(["x" * 40] * n) for n in (2, 2, 1)]


@pytest.mark.parametrize(("verb", "third"), [("sort", "sorts"), ("apply", "applies"), ("fix", "fixes")])
def test_third_user(verb: str, third: str) -> None:
    assert third_person(verb) == third


def test_functions_become_requests() -> None:
    source = (
        'class A:\n    def total(self, x):\n        """Return the sum of x. Fast."""\n        return sum(x)\n'
    )
    (function,) = documented_functions(source + "def undocumented(): pass\n")
    assert function.summary == "Return the sum of x"
    assert function.code.startswith("def total(self, x):\n    ")
    requests = {coding_request(random.Random(seed), function.summary) for seed in range(60)}
    assert "Write a Python function that returns the sum of x." in requests
    assert "Write a Python function to return the sum of x." in requests
    assert list(documented_functions("def broken(:")) == []


def test_messages_of_one_speaker_become_one_turn() -> None:
    said = [("1", "hi  there ."), ("2", ""), ("1", "how are you ?"), ("2", "fine")]
    messages = [{"agent": agent, "message": text} for agent, text in said]
    assert talk_turns(messages) == ["Hi there. How are you?", "Fine"]


def test_every_source_has_its_licence() -> None:
    names = {path.name.split("-", 1)[0] for path in (FOLDER / "LICENSES").iterdir()}
    assert {"python", "thealgorithms", "openstax", "sgd", "topical", "opentriviaqa", "gsm8k", "seed"} <= names
