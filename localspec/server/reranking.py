"""Reranking, as Jina, Cohere, llama-server and Text Embeddings Inference (TEI) word it."""

from __future__ import annotations

import time
import uuid
from asyncio import to_thread
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Annotated

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.inference.encoders import Reranker
from localspec.server.exchange import read, read_json, unless_gone
from localspec.server.service import EncoderService, Protocol
from localspec.values import Range

if TYPE_CHECKING:
    from localspec.llama.ranking import Relevance


@dataclass(frozen=True, slots=True)
class RerankBody:
    """A request to rank documents; TEI calls them `texts`, and has them back by `return_text`.

    Scores are raw by default, but those of TEI are not.
    """

    query: str
    documents: object = None
    texts: object = None
    top_n: Annotated[int, Range(1, 2**31 - 1)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None

    @property
    def is_tei(self) -> bool:
        """Return whether the reply is to be TEI's."""
        return self.documents is None and self.texts is not None


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A document with its place in the request, and its score."""

    index: int
    document: str
    score: float


async def _rerank(service: EncoderService[Reranker], request: Request) -> Response:
    body = read(RerankBody, await read_json(request))
    documents = _documents("texts", body.texts) if body.is_tei else _documents("documents", body.documents)
    began = time.monotonic()
    found = await unless_gone(request, _each(service.encoder, body.query, documents))
    tokens = sum(each.tokens for each in found)
    service.count(len(documents), tokens, time.monotonic() - began)
    is_raw = not body.is_tei if body.raw_scores is None else body.raw_scores
    ranked = [
        _Ranked(at, document, relevance.score if is_raw else _probability(relevance))
        for at, (document, relevance) in enumerate(zip(documents, found, strict=True))
    ]
    best = sorted(ranked, key=lambda each: each.score, reverse=True)[: body.top_n]
    if body.is_tei:
        return JSONResponse([_of_tei(each, with_text=bool(body.return_text)) for each in best])
    return JSONResponse(
        {
            "id": str(uuid.uuid4()),
            "object": "list",
            "model": service.name,
            "results": [_of_jina(each, with_document=bool(body.return_documents)) for each in best],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {"tokens": {"input_tokens": tokens, "output_tokens": 0}},  # Cohere's
        }
    )


async def _each(reranker: Reranker, query: str, documents: Sequence[str]) -> list[Relevance]:
    """Score documents one by one, so that others have their turns; raises UserError with the place."""
    return [await to_thread(_one, reranker, query, document, at) for at, document in enumerate(documents)]


def _one(reranker: Reranker, query: str, document: str, at: int) -> Relevance:
    try:
        return reranker.score(query, document)
    except UserError as error:
        raise UserError(f"documents[{at}]: {error.message}", error.hint) from None


def _documents(name: str, given: object) -> list[str]:
    """Read the documents, each a text or an object with one; raises UserError."""
    if not isinstance(given, list) or not given:
        raise UserError(f"{name} is not a list of texts, at least one", "send the documents to rank")
    return [_document(f"{name}[{at}]", each) for at, each in enumerate(given)]


def _document(place: str, given: object) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise UserError(f"{place} is not a text", 'send a text, or {"text": "..."}')
    return text


def _probability(relevance: Relevance) -> float:
    """Return a score from 0 to 1."""
    if relevance.is_probability:
        return relevance.score
    smaller = exp(-abs(relevance.score))  # which never overflows
    return (1.0 if relevance.score >= 0 else smaller) / (1 + smaller)


def _of_tei(ranked: _Ranked, *, with_text: bool) -> Json:
    text = {"text": ranked.document} if with_text else {}
    return {"index": ranked.index, "score": ranked.score, **text}


def _of_jina(ranked: _Ranked, *, with_document: bool) -> Json:
    document = {"document": {"text": ranked.document}} if with_document else {}
    return {"index": ranked.index, "relevance_score": ranked.score, **document}


PROTOCOL: Protocol[EncoderService[Reranker]] = Protocol(
    dict.fromkeys(("/v1/rerank", "/v1/reranking", "/v2/rerank"), _rerank)
)
