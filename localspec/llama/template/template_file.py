"""A chat template of the user's, used instead of the one in a model's file: a file, a text or a name."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from localspec.errors import ModelFileError, UserError, os_errors_as
from localspec.llama.rendering import renderer
from localspec.llama.template.named import template_names
from localspec.storage.paths import read_plain
from localspec.storage.text_file import decode_text
from localspec.types.models import GivenTemplate
from localspec.types.request import Message

LARGEST = 2**20  # bytes; those of models have up to 50,000
_WHERE = "correct the path: --chat-template-file gives it, or [templates] in config.toml"
_JINJA = "it has to be a Jinja template, as models have one in tokenizer_config.json or chat_template.jinja"
_MARK = "localspecprobe"
_ENDINGS = (".jinja", ".jinja2", ".j2", ".txt")
_LONGEST_NAME = 60  # characters of it in a message


def read_template(given: Path | GivenTemplate) -> str:
    """Read the text of a template, or its name; raises `UserError` for a file or a text that has none."""
    if isinstance(given, GivenTemplate):
        return _known(given) if given.is_name else given.text
    path = given
    what = f"the chat template {path}"
    with os_errors_as(f"{what} cannot be read", UserError, _WHERE):
        data = read_plain(path, LARGEST)
    text = decode_text(data, what)
    if not text.strip():
        raise UserError(f"{what} is empty", _JINJA)
    return text


def _known(given: GivenTemplate) -> str:
    """Return the name of a template that llama.cpp has; raises `UserError`."""
    name = given.text.strip()
    if name in template_names():
        return name
    close = get_close_matches(name, template_names(), n=1)
    if close:
        hint = f"did you mean {close[0]}?"
    elif name.endswith(_ENDINGS) or "/" in name:
        hint = "a file is named by --chat-template-file"
    else:
        hint = f"give the text of a Jinja template, or one of {', '.join(template_names())}"
    raise UserError(f"--chat-template {name[:_LONGEST_NAME]!r} is no name that llama.cpp knows", hint)


def usable_template(given: Path | GivenTemplate) -> str:
    """Return the text of a template that can be compiled, and writes what is said; raises `UserError`.

    Of a template that llama.cpp has, it is the name.
    """
    source = read_template(given)
    if isinstance(given, GivenTemplate) and given.is_name:
        return source
    what = f"the chat template {given}"
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
