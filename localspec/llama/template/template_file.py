"""A chat template in a user's file, used instead of the one in a model's file."""

from __future__ import annotations

from pathlib import Path

from localspec.errors import ModelFileError, UserError, os_errors_as
from localspec.llama.rendering import renderer
from localspec.storage.paths import read_plain
from localspec.storage.text_file import decode_text
from localspec.types.request import Message

LARGEST = 2**20  # bytes; those of models have up to 50,000
_WHERE = "correct the path: --chat-template-file gives it, or [templates] in config.toml"
_JINJA = "it has to be a Jinja template, as models have one in tokenizer_config.json or chat_template.jinja"
_MARK = "localspecprobe"


def read_template(path: Path) -> str:
    """Read the text of a template; raises `UserError` for a file without one."""
    what = f"the chat template {path}"
    with os_errors_as(f"{what} cannot be read", UserError, _WHERE):
        data = read_plain(path, LARGEST)
    text = decode_text(data, what)
    if not text.strip():
        raise UserError(f"{what} is empty", _JINJA)
    return text


def usable_template(path: Path) -> str:
    """Return the text of a template that can be compiled, and writes what is said; raises `UserError`."""
    source = read_template(path)
    what = f"the chat template {path}"
    try:
        renderer.render(f"{{{{ raise_exception('{_MARK}') }}}}{source}", {}, ())  # compiled, and then ended
    except UserError as error:
        if _MARK not in error.message:
            reason = error.message.partition(": ")[2] or error.message
            raise UserError(f"{what} has a mistake: {reason}", _JINJA) from None
    try:
        written = renderer.render(source, {"add_generation_prompt": True}, (Message("user", _MARK),))
    except ModelFileError as error:
        raise UserError(f"{what} cannot be used: {error.message}", "choose another file") from None
    except UserError:  # it may refuse this conversation, and not others
        return source
    if _MARK not in written:
        raise UserError(f"{what} writes nothing of what is said", _JINJA)
    return source
