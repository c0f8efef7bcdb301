"""Chat templates in files of their own: used instead of the model's, and refused in a line."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.llama.model import Model
from localspec.llama.template.template_file import LARGEST, read_template, usable_template
from localspec.types.models import ModelOptions
from localspec.types.request import Message, Request

OWN = "{% for m in messages %}({{ m.role }}: {{ m.content }}){% endfor %}"
HELLO = (Message("user", "Hello!"),)

BROKEN = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t\r\n", "is empty"),
    "mark alone": (b"\xef\xbb\xbf", "is empty"),
    "UTF-16 without a mark": ("{{ x }}".encode("utf-16-le"), "is binary: a zero byte at offset 1"),
    "Latin-1": ("{{ 'é' }}".encode("latin-1"), "is not UTF-8 text: byte 0xe9 at offset 4"),
    "a model": (b"GGUF\3\0\0\0", "is binary"),
    "huge": (b"x" * (LARGEST + 1), "is larger than 1 MiB"),
    "brace": (b"{% for m in messages %}{{ m.content }", "has a mistake: unexpected '}'"),
    "no end": (b"{% for m in messages %}{{ m.content }}", "has a mistake: Unexpected end of template"),
    "stray end": (OWN.encode() + b"{% endif %}", "has a mistake: Encountered unknown tag 'endif'"),
    "stray else": (OWN.encode() + b"{% else %}", "has a mistake: Encountered unknown tag 'else'"),
    "no such tag": (b"{% do x() %}" + OWN.encode(), "has a mistake: Encountered unknown tag 'do'"),
    "no such filter": (b"{{ messages | nope }}", "has a mistake: No filter named 'nope'"),
    "break": (b"{% break %}", "has a mistake: "),
    "Go": (b"{{ if .System }}{{ .System }}{{ end }}", "has a mistake: unexpected '.'"),
    "no template": (b"Once upon a time", "writes nothing of what is said"),
    "name": (b"chatml", "writes nothing of what is said"),
}
"""By name: what is in a file, and what is said of it."""


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN)
def test_unusable_templates_are_reported_before_the_model_loads(
    content: bytes, words: str, tmp_path: Path, tiny_llama: Path
) -> None:
    path = tmp_path / "own.jinja"
    path.write_bytes(content)
    loads: list[float] = []

    def on_progress(share: float) -> bool:
        loads.append(share)
        return True

    with pytest.raises(UserError) as refused:
        Model.open(ModelOptions(tiny_llama, chat_template=path), on_progress)
    assert f"the chat template {path} " in refused.value.message
    assert words in refused.value.message
    assert refused.value.hint
    assert "\n" not in str(refused.value)
    assert loads == []


@pytest.mark.parametrize(("name", "words"), [("gone.jinja", "No such file"), ("", "folder|directory")])
def test_files_that_are_not_models_are_reported(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot be read: .*(?:{words})") as refused:
        read_template(tmp_path / name)
    assert "--chat-template-file" in refused.value.hint


@pytest.mark.parametrize(
    "source",
    [
        OWN,
        OWN.replace("\n", "\r\n"),
        "\ufeff" + OWN,
        "{%- if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}" + OWN,
        "{% macro said(m) %}{{ m.content }}{% endmacro %}{{ said(messages[0]) }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}",
        "{# 'a comment' -#}\n" + OWN,
        "{{ bos_token }}{{ messages[0].content | trim }}",
    ],
)
def test_usable_models_pass(source: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_bytes(source.encode())
    assert usable_template(path) == source.removeprefix("\ufeff")


@pytest.mark.slow
def test_a_template_without_end_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    loop = "{% for _ in range(99999) %}"
    path.write_text(loop * 3 + "{% endfor %}" * 3 + OWN, encoding="utf-8")
    with pytest.raises(UserError, match=r"own\.jinja cannot be used: .* takes longer than"):
        usable_template(path)


def test_it_is_used_instead_of_that_of_the_model(tmp_path: Path, tiny_llama: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(OWN, encoding="utf-8")
    options = ModelOptions(tiny_llama, chat_template=path)
    with closing(Model.open(options)) as model, closing(Model.open(ModelOptions(tiny_llama))) as usual:
        assert model.template.render(HELLO) == "(user: Hello!)"
        assert model.template.note == ""
        assert usual.template.render(HELLO).startswith("<|im_start|>user")


@pytest.mark.slow
def test_it_reaches_the_process_of_the_models_and_is_read_when_they_open(
    tmp_path: Path, tiny_llama: Path
) -> None:
    path = tmp_path / "own.jinja"
    options = ModelOptions(tiny_llama, context=128, threads=1, chat_template=path)
    for source, prompt in ((OWN, "(user: Hello!)"), (OWN.replace("(", "["), "[user: Hello!)")):
        path.write_text(source, encoding="utf-8")
        with Worker.open(OpenPlan(options)) as worker:
            path.unlink()
            assert worker.render(Request(HELLO)) == prompt
    with pytest.raises(UserError, match="cannot be read: No such file"):
        Worker.open(OpenPlan(options))


def test_sizes_are_measured_without_it(tmp_path: Path, tiny_llama: Path) -> None:
    options = ModelOptions(tiny_llama, chat_template=tmp_path / "gone.jinja")
    Model.open(options, allocate=False).close()
