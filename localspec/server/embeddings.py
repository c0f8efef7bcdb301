"""Embeddings, as OpenAI, llama-server and Ollama word them."""

from __future__ import annotations

import base64
import time
from asyncio import to_thread
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.errors import UserError
from localspec.inference.encoders import Embedder
from localspec.server import ollama
from localspec.server.exchange import read, read_json, unless_gone
from localspec.server.service import EncoderService, Protocol

if TYPE_CHECKING:
    from localspec.llama.embedding import Embedding

_MOST_TEXTS = 2048
Text = str | Sequence[int | str]
"""A text, token ids, or ids among texts."""


@dataclass(frozen=True, slots=True)
class EmbeddingBody:
    """A request for embeddings; llama-server calls the input `content`, Ollama `prompt`."""

    input: object = None
    content: object = None
    prompt: object = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    embd_normalize: int = 2  # llama-server's: 2 is a length of 1

    @property
    def given(self) -> object:
        """What is to be embedded."""
        return next((each for each in (self.input, self.content, self.prompt) if each is not None), None)


@dataclass(frozen=True, slots=True)
class _Embedded:
    """The vectors of a request."""

    model: str
    found: Sequence[Embedding]

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.found)


async def _embeddings(service: EncoderService[Embedder], request: Request) -> Response:
    if service.encoder.pooling == "none" and not request.url.path.startswith("/v1/"):
        return await _native(service, request)  # llama-server's meaning of that path
    _check_pools(service, request)
    body, embedded = await _embedded(service, request)
    data = [
        {"object": "embedding", "index": at, "embedding": _vector(each, body.encoding_format)}
        for at, each in enumerate(embedded.found)
    ]
    usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
    return JSONResponse({"object": "list", "data": data, "model": embedded.model, "usage": usage})


async def _native(service: EncoderService[Embedder], request: Request) -> Response:
    """Answer as llama-server does at its own path: a list of vectors for each text, or for its tokens."""
    _, embedded = await _embedded(service, request)
    return JSONResponse(
        [{"index": at, "embedding": each.vectors.tolist()} for at, each in enumerate(embedded.found)]
    )


async def _ollama(service: EncoderService[Embedder], request: Request) -> Response:
    _check_pools(service, request)
    _, embedded = await _embedded(service, request)
    vectors = [_vector(each) for each in embedded.found]
    return JSONResponse(
        {"model": embedded.model, "embeddings": vectors, "prompt_eval_count": embedded.tokens}
    )


async def _old_ollama(service: EncoderService[Embedder], request: Request) -> Response:
    _check_pools(service, request)
    _, embedded = await _embedded(service, request)
    return JSONResponse({"embedding": _vector(embedded.found[0])})


def _check_pools(service: EncoderService[Embedder], request: Request) -> None:
    """Raise UserError where a path has one vector for a text, and the model one for each token."""
    if service.encoder.pooling == "none":
        problem = f"{request.url.path} has one vector for each text, and --pooling none one for each token"
        raise UserError(problem, "ask at /embedding, or start the server without it")


async def _embedded(service: EncoderService[Embedder], request: Request) -> tuple[EmbeddingBody, _Embedded]:
    """Embed the texts of a request; raises UserError."""
    body = read(EmbeddingBody, await read_json(request))
    embedder = service.encoder
    texts = _texts(body.given)
    if body.embd_normalize != 2 and embedder.pooling != "none":
        raise UserError("embd_normalize is offered as 2 alone: vectors have a length of 1", "leave it out")
    began = time.monotonic()
    found = await unless_gone(request, _each(embedder, texts))
    embedded = _Embedded(service.name, found)
    service.count(len(texts), embedded.tokens, time.monotonic() - began)
    width = found[0].vectors.shape[1]
    if body.dimensions not in (None, width):
        raise UserError(
            f"dimensions is {body.dimensions}, but the model's vectors have {width}", "leave it out"
        )
    return body, embedded


async def _each(embedder: Embedder, texts: Sequence[Text]) -> list[Embedding]:
    return [await to_thread(_one, embedder, text, at) for at, text in enumerate(texts)]


def _one(embedder: Embedder, text: Text, at: int) -> Embedding:
    try:
        return embedder.embed(text)
    except UserError as error:
        raise UserError(f"input[{at}]: {error.message}", error.hint) from None


def _texts(given: object) -> list[Text]:
    """Read a text, token ids, or a list of either; ids among texts are one. Raises UserError."""
    if not isinstance(given, list) or any(type(each) is int for each in given):
        given = [given]
    if not 1 <= len(given) <= _MOST_TEXTS:
        raise UserError(f"input has {len(given):,} texts; it takes from 1 to {_MOST_TEXTS:,}")
    return [_text(each, at) for at, each in enumerate(given)]


def _text(given: object, at: int) -> Text:
    """Read one text: a string, token ids, or an object with parts, as llama-server takes it."""
    if isinstance(given, dict):
        parts = given.get("content")
        given = given.get("prompt_string")
        if isinstance(parts, list) and all(_is_text_part(part) for part in parts):
            given = "".join(part["text"] for part in parts)
    if isinstance(given, str):
        return given
    if isinstance(given, list) and given and {type(each) for each in given} in ({int}, {int, str}):
        return cast(list[int | str], given)
    raise UserError(f"input[{at}] is not a text and no list of token ids", "send texts")


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _vector(embedding: Embedding, form: str = "float") -> str | list[float]:
    """Return a vector as numbers, or as the base64 of float32 numbers, the lowest byte first."""
    if form == "base64":
        return base64.b64encode(embedding.vector.astype("<f4").tobytes()).decode()
    return [float(each) for each in embedding.vector]


PROTOCOL: Protocol[EncoderService[Embedder]] = Protocol(
    {"/v1/embeddings": _embeddings, "/embedding": _native}
)
OLLAMA: Protocol[EncoderService[Embedder]] = Protocol(
    {"/api/embed": _ollama, "/api/embeddings": _old_ollama}, ollama.error
)
