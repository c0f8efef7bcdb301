"""An answer in llama-server's own words: its text, settings, prompt and figures."""

from __future__ import annotations

from localspec.app.answer_json import Json, finite, timings
from localspec.server.blocks import BlockStream, warned
from localspec.server.queue import QueuedRequest
from localspec.server.service import ChatService

_STOPS = {"stop": "eos", "length": "limit", "context": "limit"}


def native_answer(
    service: ChatService, asked: QueuedRequest, blocks: BlockStream, number: int, prompt: str
) -> Json:
    """Return the finished answer of this number to a prompt, which is given as the target reads it."""
    assert blocks.finished is not None
    finished = blocks.finished
    summary = finished.summary
    text = blocks.text("text")
    return {
        "index": number,
        "id_slot": finished.slot,
        "model": asked.profile.name,
        "generation_settings": service.settings(asked),
        "prompt": prompt,
        "content": text,
        "stop": True,
        "stop_type": "word" if finished.stop_string else _STOPS.get(finished.reason, "none"),
        "stopping_word": finished.stop_string or "",
        "has_new_line": "\n" in text,
        "truncated": False,
        "tokens_predicted": summary.tokens,
        "tokens_evaluated": summary.prompt_tokens,
        "tokens_cached": summary.cached_tokens,
        "timings": finite(timings(summary)),
        **warned(blocks.warnings),
    }
