"""Reranking over HTTP, as Jina, Cohere, llama-server and Text Embeddings Inference word it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from localspec.errors import UserError
from localspec.inference.encoders import Reranker
from localspec.llama.ranking import Relevance
from tests.cli.fake_runtime import model_info
from tests.server.running import Served, serving
from tests.server.turning_models import TurningModels
from tests.waiting import until

DOCUMENTS = ["a", "three words here", "", "two words"]


@dataclass
class CountingReranker(Reranker):
    """Scores a document by its words; `steps` allows documents."""

    steps: threading.Semaphore | None = None
    is_probability: bool = False
    scored: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.info = model_info("ranks")

    def score(self, query: str, document: str) -> Relevance:
        if self.steps is not None:
            self.steps.acquire(timeout=20)
        self.scored.append(document)
        if len(document) > 100:
            raise UserError("the document is too large", "shorten or split it")
        words = len(document.split())
        return Relevance(words / 4 if self.is_probability else float(words - 2), words, self.is_probability)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(TurningModels, reranker=CountingReranker()) as running:
        yield running


def ranked(served: Served, **body: object) -> dict[str, Any]:
    found: dict[str, Any] = served.post("/rerank", {"query": "q"} | body).json()
    return found


def ranked_as_tei(served: Served, **body: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.post("/rerank", {"query": "q"} | body).json()
    return found


def test_the_best_documents_come_first(served: Served) -> None:
    reply = ranked(served, documents=DOCUMENTS)
    scores = [(each["index"], each["relevance_score"]) for each in reply["results"]]
    assert scores == [(1, 1.0), (3, 0.0), (0, -1.0), (2, -2.0)]
    assert reply["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert (reply["object"], reply["model"]) == ("list", "ranks")
    assert reply["meta"]["tokens"]["input_tokens"] == 6


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"])
def test_every_path_ranks(served: Served, path: str) -> None:
    reply = served.post(path, {"query": "q", "documents": DOCUMENTS, "top_n": 1, "return_documents": True})
    (best,) = reply.json()["results"]
    assert best == {"index": 1, "relevance_score": 1.0, "document": {"text": "three words here"}}


def test_top_n_may_be_larger_than_the_list(served: Served) -> None:
    for asked, found in ((None, 4), (2, 2), (99, 4)):
        assert len(ranked(served, documents=DOCUMENTS, top_n=asked)["results"]) == found


def test_documents_may_be_objects_with_a_text(served: Served) -> None:
    reply = ranked(served, documents=[{"text": "three words here"}, {"text": "b", "title": "c"}])
    assert [each["index"] for each in reply["results"]] == [0, 1]


def test_tei_has_probabilities_unless_it_asks_for_raw_scores(served: Served) -> None:
    found = ranked_as_tei(served, texts=DOCUMENTS, return_text=True)
    assert found[1] == {"index": 3, "score": 0.5, "text": "two words"}
    assert 0 < found[-1]["score"] < 0.5 < found[0]["score"] < 1
    assert ranked_as_tei(served, texts=DOCUMENTS, raw_scores=True)[-1] == {"index": 2, "score": -2.0}
    as_probabilities = ranked(served, documents=DOCUMENTS, raw_scores=False)["results"]
    assert [each["relevance_score"] for each in as_probabilities] == [each["score"] for each in found]


def test_a_probability_stays_one() -> None:
    with serving(TurningModels, reranker=CountingReranker(is_probability=True)) as served:
        assert ranked_as_tei(served, texts=["three words here"])[0]["score"] == 0.75


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "documents is not a list of texts"),
        ({"documents": []}, "at least one"),
        ({"documents": None}, "documents is not a list"),
        ({"documents": 123}, "documents is not a list"),
        ({"documents": [1, 2]}, "documents[0] is not a text"),
        ({"texts": ["a", {"url": "b"}]}, "texts[1] is not a text"),
        ({"documents": ["a", 101 * "b"]}, "documents[1]: the document is too large"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
        ({"documents": ["a"], "query": 7}, "query"),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_name(
    served: Served, body: dict[str, object], complaint: str
) -> None:
    reply = served.post("/rerank", {"query": "q"} | body)
    assert reply.status_code == 400
    assert complaint in reply.json()["error"]["message"]


def test_a_client_that_leaves_ends_its_ranking_and_others_have_turns() -> None:
    steps = threading.Semaphore(0)
    reranker = CountingReranker(steps=steps)
    with serving(TurningModels, reranker=reranker) as served:
        with pytest.raises(httpx2.TimeoutException):
            served.client.post("/rerank", json={"query": "q", "documents": 5000 * ["a"]}, timeout=0.1)
        steps.release(10)
        until(lambda: bool(reranker.scored))
        steps.release(10_000)
        assert ranked(served, documents=["b"])["usage"]["prompt_tokens"] == 1
        assert len(reranker.scored) < 100


def test_the_list_of_models_says_what_ranks(served: Served) -> None:
    chat, *_, ranks = served.client.get("/v1/models").json()["data"]
    assert (chat["type"], ranks["type"], ranks["id"]) == ("model", "rerank", "ranks")
    assert ranks["architecture"]["output_modalities"] == ["rerank"]
    assert not ranks["capabilities"]["tools"]


def test_without_a_model_the_server_says_how_to_name_one() -> None:
    with serving(TurningModels) as served:
        reply = served.post("/v1/rerank", {"query": "q", "documents": ["a"]})
        assert reply.status_code == 501
        assert "--rerank FILE" in reply.json()["error"]["message"]
