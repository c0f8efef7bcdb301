"""Embeddings over HTTP, as OpenAI's client, llama-server and Ollama ask for them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import openai
import pytest

from localspec.inference.encoders import Embedder
from localspec.types.models import ModelOptions
from tests.llama import tiny
from tests.server.running import Served, serving
from tests.server.turning_models import TurningModels


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    def pooled(recipe: tiny.Recipe) -> None:
        recipe.writer.add_pooling_type(gguf.PoolingType.MEAN)

    path = tiny.llama(tmp_path_factory.mktemp("model") / "vectors.gguf", adjust=pooled)
    embedder = Embedder(ModelOptions(path=path, gpu_layers=0))
    with serving(TurningModels, embedder=embedder) as running:
        yield running
    embedder.close()


def vector(served: Served, text: object) -> list[float]:
    found: list[float] = served.post("/v1/embeddings", {"input": text}).json()["data"][0]["embedding"]
    return found


def test_the_openai_client_reads_vectors(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="any", input=["one", "two words"])  # it asks for base64
        assert [each.index for each in found.data] == [0, 1]
        for each, text in zip(found.data, ("one", "two words"), strict=True):
            np.testing.assert_allclose(each.embedding, vector(served, text), atol=1e-7)
            assert np.linalg.norm(each.embedding) == pytest.approx(1)
        assert found.usage.prompt_tokens == found.usage.total_tokens > 3
        assert found.model == client.models.list().data[-1].id


def test_every_path_tells_the_same_vector(served: Served) -> None:
    expected = vector(served, "one")
    assert served.post("/embeddings", {"input": ["two", "one"]}).json()["data"][1]["embedding"] == expected
    assert served.post("/embedding", {"content": "one"}).json() == [{"index": 0, "embedding": [expected]}]
    assert served.post("/api/embed", {"input": "one"}).json()["embeddings"] == [expected]
    assert served.post("/api/embeddings", {"prompt": "one"}).json() == {"embedding": expected}
    packed = served.post("/v1/embeddings", {"input": "one", "encoding_format": "base64"}).json()
    raw = base64.b64decode(packed["data"][0]["embedding"])
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), np.array(expected, np.float32))


def test_texts_are_counted_in_the_metrics(served: Served) -> None:
    before = figures(served)
    used = served.post("/v1/embeddings", {"input": ["one", "two words"]}).json()["usage"]["prompt_tokens"]
    told = figures(served)
    assert told["llamacpp:prompt_tokens_total"] - before["llamacpp:prompt_tokens_total"] == used
    assert told["llamacpp:n_decode_total"] - before["llamacpp:n_decode_total"] == 2
    assert told["localspec_requests_total"] - before["localspec_requests_total"] == 1
    assert told["llamacpp:prompt_tokens_seconds"] > 0


def figures(served: Served) -> dict[str, float]:
    lines = served.client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if line[0] != "#")}


def test_texts_come_in_the_shapes_that_llama_server_takes(served: Served) -> None:
    parts = [{"type": "text", "text": "on"}, {"type": "text", "text": "e"}]
    assert (
        vector(served, {"content": parts})
        == vector(served, [{"prompt_string": "one"}])
        == vector(served, "one")
    )
    assert vector(served, [5, "one", 6]) == vector(served, [[5, "one", 6], "two"]) != vector(served, "one")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "input[0] is not a text"),
        ({"input": []}, "input has 0 texts"),
        ({"input": ["a", 3.5]}, "input[1] is not a text"),
        ({"input": ["a", ["b"]]}, "input[1] is not a text"),
        ({"input": {"content": [{"type": "image_url", "text": "a"}]}}, "input[0] is not a text"),
        ({"input": ["a"] * 3000}, "it takes from 1 to 2,048"),
        ({"input": ["a", "long " * 5000]}, "input[1]: the text is"),
        ({"input": [[10**9]]}, "input[0]: there is no token"),
        ({"input": "a", "dimensions": 7}, "dimensions is 7, but the model's vectors have 64"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "embd_normalize": -1}, "embd_normalize"),
    ],
)
def test_what_has_no_vector_is_refused_by_name(
    served: Served, body: dict[str, object], complaint: str
) -> None:
    reply = served.post("/v1/embeddings", body)
    assert reply.status_code == 400
    assert complaint in reply.json()["error"]["message"]
    assert vector(served, "one")


def test_without_pooling_every_token_has_a_vector(tmp_path: Path) -> None:
    path = tiny.encoder(tmp_path / "encoder.gguf")
    with closing(Embedder(ModelOptions(path=path, gpu_layers=0))) as embedder:
        mean = embedder.embed("two words").vector
    embedder = Embedder(ModelOptions(path=path, gpu_layers=0), "none")
    with closing(embedder), serving(TurningModels, embedder=embedder) as served:
        for asked in ("/embedding", "/embeddings"):
            short, long = served.post(asked, {"input": ["a", "two words"], "embd_normalize": -1}).json()
            assert len(short["embedding"]) < len(long["embedding"])  # texts of different lengths
        vectors = np.array(long["embedding"])
        assert vectors.shape == (len(embedder.embed("two words").vectors), tiny.WIDTH)
        pooled = vectors.mean(0)
        np.testing.assert_allclose(pooled / np.linalg.norm(pooled), mean, atol=1e-5)
        for asked in ("/v1/embeddings", "/api/embed", "/api/embeddings"):
            reply = served.post(asked, {"input": "a"})
            assert reply.status_code == 400
            assert "--pooling none" in str(reply.json()["error"])


def test_without_a_model_the_server_says_how_to_name_one() -> None:
    with serving(TurningModels) as served:
        reply = served.post("/v1/embeddings", {"input": "a"})
        assert reply.status_code == 501
        assert "--embeddings FILE" in reply.json()["error"]["message"]


def test_dimensions_that_fit_are_taken(served: Served) -> None:
    assert served.post("/v1/embeddings", {"input": "a", "dimensions": 64}).status_code == 200
