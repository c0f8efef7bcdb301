"""The text of what clients send as the content of a message: texts, and a few words for everything else."""

from __future__ import annotations

import json
import re

from localspec.app.answer_json import Json

_TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")  # kinds of parts
_THOUGHTS = ("thinking", "reasoning", "redacted_thinking")
_NAMES = {
    "an image": ("image", "image_url", "input_image", "computer_screenshot"),
    "a recording": ("audio", "audio_url", "input_audio"),
    "a video": ("video", "video_url", "input_video"),
    "a file": ("document", "file", "input_file"),
}
_MEDIA = {kind: name for name, kinds in _NAMES.items() for kind in kinds}
# A text in JSON that is base64, as an address or alone.
_DATA = re.compile(r'"(?:data:[\w/+.;=-]{0,200};base64,[^"]*|(?:[A-Za-z0-9+/=_-]|\\[nr]){200,})"')


def text_of(content: object) -> str:
    """Return the text of a message: of a text, nothing, one part or several; any other JSON is its own text.

    Images and the like become words that say so. Parts of an unknown kind keep everything but their data.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, dict):
        return _part(content)
    if isinstance(content, list) and all(map(_is_part, content)):
        return "\n".join(map(_part, content))
    return _json(content)


def without_thoughts(content: object) -> tuple[object, str]:
    """Return the content of a message without the parts that are thinking, and their text."""
    if not isinstance(content, list):
        return content, ""
    thoughts = [part for part in content if isinstance(part, dict) and part.get("type") in _THOUGHTS]
    texts = [text_of(part.get("thinking") or part.get("text")) for part in thoughts]
    return [part for part in content if part not in thoughts], "\n\n".join(filter(None, texts))


def instead_of(what: str, name: object = None) -> str:
    """Return the words for something that the model cannot be given."""
    named = f", {name}" if name and isinstance(name, str) else ""
    return f"[{what} was here{named}; this model reads text]"


def _is_part(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, dict) and (isinstance(value.get("type"), str) or value.keys() == {"text"})
    )


def _part(part: object) -> str:
    """Return the text of a part, or what stands for it."""
    if not isinstance(part, dict):
        return str(part)
    kind = part.get("type")
    if kind in _TEXTS or part.keys() == {"text"}:
        return text_of(part.get("text"))
    if kind == "refusal":
        return text_of(part.get("refusal"))
    if kind in _MEDIA or kind == "search_result":
        return _titled(part)
    return _json(part)


def _titled(part: Json) -> str:
    """Return the texts of a file below its title; other files are only named."""
    headings = [part.get(name) for name in ("title", "context", "source")]
    source = part.get("source")
    holder = source if isinstance(source, dict) else part
    if holder.get("type") == "text":
        text = text_of(holder.get("data"))
    elif "content" in holder:
        text = text_of(holder["content"])
    else:
        inner = part.get("file")
        name = (inner if isinstance(inner, dict) else part).get("filename")
        text = instead_of(_MEDIA.get(str(part["type"]), "something"), name)
    return "\n".join([*(each for each in headings if each and isinstance(each, str)), text])


def _json(value: object) -> str:
    return _DATA.sub('"[data was here]"', json.dumps(value, ensure_ascii=False))
