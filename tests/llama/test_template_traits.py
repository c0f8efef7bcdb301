"""Whatever a chat template takes, loses or refuses, every word of a conversation reaches the model once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.errors import UserError
from localspec.llama.model import Model
from localspec.llama.template.chat_template import ChatTemplate
from localspec.types.models import ModelOptions
from localspec.types.request import Message
from tests.llama import tiny
from tests.llama.conversations import SHAPES, TOOL, Shape, missing

pytestmark = pytest.mark.timeout(120)

MADE = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
ASK, SAID = Message("user", "Why?"), Message("assistant", "Because.")


@pytest.fixture(scope="module")
def templates(demo_target: Path) -> Iterator[dict[str, ChatTemplate]]:
    """The made templates, each under the file's vocabulary."""
    model = Model.open(ModelOptions(path=demo_target, gpu_layers=0), allocate=False)
    yield {path.stem: ChatTemplate(model.vocabulary, path.read_text(encoding="utf-8")) for path in MADE}
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", MADE, ids=lambda path: path.stem)
def test_every_word_comes_out_once(path: Path, templates: dict[str, ChatTemplate]) -> None:
    template = templates[path.stem]
    lost = {
        (shape.name, thinks): words
        for shape in SHAPES
        for thinks in (None, False)
        if (words := missing(template, shape, thinks=thinks))
    }
    assert lost == {}


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(roles=st.lists(st.sampled_from("sua"), min_size=1, max_size=7), name=st.sampled_from(MADE))
def test_no_order_of_roles_loses_a_word(
    roles: list[str], name: Path, templates: dict[str, ChatTemplate]
) -> None:
    prefilled = roles[-1] == "a"
    assert missing(templates[name.stem], Shape(" ".join(roles), prefilled=prefilled)) == []


def test_only_what_a_template_needs_is_changed(llama_model: Model) -> None:
    chatml = llama_model.template
    talk = [ASK, ASK, SAID, SAID, Message("system", "Now briefly."), ASK]
    turns = "".join(f"<|im_start|>{each.role}\n{each.content}<|im_end|>\n" for each in talk)
    assert chatml.render(talk) == f"{turns}<|im_start|>assistant\n"
    assert chatml.note == ""  # nothing to tell of


@pytest.mark.parametrize(
    ("name", "talk", "part"),
    [
        ("nosystem", "s u", "user\nmark0ed\n\nmark1ed<"),
        ("strict", "s u a s u", "user\nmark3ed\n\nmark4ed<"),  # at its place
        ("strict", "s u a u s", "user\nmark3ed\n\nmark4ed<"),
        ("strict", "s s u", "user\nmark0ed\n\nmark1ed\n\nmark2ed<"),
        ("strict", "a u", "user\n<|im_end|>\n<|im_start|>assistant\nmark0ed<"),
        ("mistral", "u c r u", "[/TOOL_RESULTS] </s>[INST]mark3ed"),
    ],
)
def test_a_refused_conversation_is_rewritten_in_another_form(
    name: str, talk: str, part: str, templates: dict[str, ChatTemplate], llama_model: Model
) -> None:
    template = ChatTemplate(llama_model.vocabulary, templates[name].source)
    shape = Shape(talk)
    assert part in template.render(shape.messages, tools=shape.tools)


def test_inexpressible_conversations_are_reported(llama_model: Model) -> None:
    questions_alone = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }};{% endif %}{% endfor %}"
    )
    template = ChatTemplate(llama_model.vocabulary, questions_alone)
    assert template.note == "the model's chat template leaves out earlier answers"
    assert template.render([Message("system", "Be brief."), ASK]) == "Be brief.\n\nWhy?;"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('no') }}", "refuses the conversation: no; change the conversation"),
        (
            "{{ messages | fromjson }}",
            "has a mistake: No filter named 'fromjson'",
        ),
        (
            "{% do 1 %}",
            "has a mistake: Encountered unknown tag 'do'.; give another with --chat-template-file",
        ),
        ("{{ none.x.y }}", "has a mistake: 'None' has no attribute 'x'"),
    ],
)
def test_a_mistake_of_a_template_is_not_a_refusal(llama_model: Model, source: str, words: str) -> None:
    template = ChatTemplate(llama_model.vocabulary, source)
    with pytest.raises(UserError, match="chat template") as caught:
        template.render([ASK])
    assert words in str(caught.value)


def test_special_tokens_have_their_names(llama_model: Model) -> None:
    source = "{{ bos_token }}{{ eos_token + unk_token + pad_token + sep_token + mask_token }}"
    assert ChatTemplate(llama_model.vocabulary, source).render([ASK]) == "<s></s><unk>"


ENDS = {
    "fin": ("</s>", "<|fin|>", "<|im_start|>"),
    "phi3": ("<|end|>", "<|user|>"),
    "channels": (),  # its model continues behind each of its tokens
    "one_call": ("<|end|>", "<|user|>"),
    "llama2": ("</s>", "<s>", "[INST]"),
    "mistral": ("</s>", "[INST]"),
}


@pytest.mark.parametrize("kind", [tiny.CONTROL, tiny.USER_DEFINED, tiny.NORMAL])
@pytest.mark.parametrize("name", ENDS)
def test_end_of_turn_tokens_of_a_template_end_an_answer(
    name: str, kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = ["<|fin|>", "<|im_start|>", "<|end|>", "<|user|>", "<|assistant|>", "[INST]", "<|channel|>"]
    marks += ["<|start|>", "<|message|>", "<|call|>"]
    monkeypatch.setattr(tiny, "SPECIAL", ["<unk>", "<s>", "</s>", *marks])
    monkeypatch.setattr(tiny, "TYPES", [tiny.UNKNOWN, tiny.CONTROL, tiny.CONTROL, *[kind] * len(marks)])
    source = (Path(__file__).parent / f"templates/{name}.jinja").read_text(encoding="utf-8")
    model = Model.open(ModelOptions(path=tiny.llama(tmp_path / "model.gguf", template=source)))
    ends = {model.vocabulary.decode([token], special=True) for token in model.template.traits.end_tokens}
    expected = set(ENDS[name]) - {"</s>"} if name == "fin" else set(ENDS[name])
    if kind == tiny.NORMAL:  # only what stands right behind an answer is looked for by its text
        expected = {text for text in expected if text in ("<s>", "</s>", "<|fin|>", "<|end|>")}
    if name == "channels":
        expected = set()
    assert ends == expected
    assert model.end_tokens >= {2, *model.template.traits.end_tokens}
    model.close()


OPENS = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ '<think>\n' }}"
MAKERS = (
    "{% for m in messages %}[{{ m.role }}:{% if m.role == 'assistant' %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}]{% endfor %}"
    "{{ '[assistant:<think>\n' }}"
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Message("assistant", "So"), "\n</think>\n\nSo"),
        (Message("assistant", "So", thinking="hm"), "hm\n</think>\n\nSo"),
        (Message("assistant", "<think>\nhm\n</think>\n\nSo"), "hm\n</think>\n\nSo"),
        (Message("assistant", "<think>\n\n</think>\n\nSo"), "\n</think>\n\nSo"),
        (Message("assistant", "<think>\nhm"), "hm"),  # it continues thinking
        (Message("assistant", "The tag `</think>` ends it"), "\n</think>\n\nThe tag `</think>` ends it"),
        (Message("assistant", ""), ""),  # nothing has come yet
    ],
)
@pytest.mark.parametrize("source", [OPENS, MAKERS])
def test_an_answer_that_is_continued_follows_its_thinking(
    llama_model: Model, source: str, answer: Message, expected: str
) -> None:
    template = ChatTemplate(llama_model.vocabulary, source)
    prompt = template.render([ASK])
    assert template.render([ASK, answer]) == prompt + expected


def test_thinking_of_an_answer_that_is_continued_is_read_as_such(llama_model: Model) -> None:
    template = ChatTemplate(llama_model.vocabulary, OPENS)
    tokens = template.encode_chat([ASK, Message("assistant", "<think>\nhm <think> </s>\n</think>\n\nSo")])
    assert tokens.count(6) == 1  # the tag that begins it, and no other
    assert tokens.count(2) == 0


def test_what_is_between_prompt_and_answer_is_the_templates_own(templates: dict[str, ChatTemplate]) -> None:
    template = templates["channels"]
    assert template.render([ASK, Message("assistant", "So")]).endswith(
        "<|start|>assistant<|channel|>final<|message|>So"
    )


def test_an_answer_in_channels_continues_in_its_own(templates: dict[str, ChatTemplate]) -> None:
    template = templates["channels"]
    thought, final = "<|channel|>analysis<|message|>hm<|end|>", "<|channel|>final<|message|>So"
    prompt = template.render([ASK])
    for begun in (final, thought, f"{thought}<|start|>assistant{final}", "<|channel|>analysis<|message|>h"):
        assert template.render([ASK, Message("assistant", begun)]) == prompt + begun
    earlier = template.render([ASK, Message("assistant", f"{thought}<|start|>assistant{final}"), ASK])
    assert earlier == template.render([ASK, Message("assistant", "So", thinking="hm"), ASK])
    assert earlier == template.render([ASK, Message("assistant", final), ASK])


@pytest.mark.parametrize("name", ["splits", "thinks"])
def test_an_answer_that_speaks_of_the_tag_keeps_its_beginning(
    name: str, templates: dict[str, ChatTemplate], llama_model: Model
) -> None:
    said = "The tag `</think>` ends the thinking. Paris is in France."
    for template in (templates[name], ChatTemplate(llama_model.vocabulary, templates[name].source)):
        tokens = template.encode_chat([ASK, Message("assistant", said), ASK])
        assert said in template._vocabulary.decode(tokens, special=True)


def test_thinking_in_the_text_of_an_earlier_answer_is_handed_over_apart(llama_model: Model) -> None:
    template = ChatTemplate(llama_model.vocabulary, MAKERS)
    apart = [ASK, Message("assistant", "So.", thinking="hm"), ASK]
    within = [ASK, Message("assistant", "<think>\nhm\n</think>\n\nSo."), ASK]
    assert template.render(within) == template.render(apart)


def test_white_space_and_numbers_that_makers_added_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    special = ["<unk>", "<s>", "</s>", "  ", "1234", "<|x|>", "<table>"]
    monkeypatch.setattr(tiny, "SPECIAL", special)
    monkeypatch.setattr(tiny, "TYPES", [2, 3, 3, 4, 4, 4, 4])
    model = Model.open(
        ModelOptions(path=tiny.llama(tmp_path / "model.gguf", template="{{ messages[0].content }}"))
    )
    tokens = model.template.encode_chat([Message("user", "a  1234 <|x|> <table> b")])
    assert {3, 4} < {*tokens}
    assert {5, 6}.isdisjoint(tokens)
    assert model.vocabulary.decode(tokens, special=True) == "<s>a  1234 <|x|> <table> b"
    model.close()


def test_a_tool_whose_description_a_template_misses_is_reported_in_words(llama_model: Model) -> None:
    strict = "{% for t in tools %}{{ t.function.parameters.properties.word.description | upper }}{% endfor %}"
    strict += "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    strict += (
        "{% for m in messages %}[{{ m.role }}:{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}]"
    )
    template = ChatTemplate(llama_model.vocabulary, strict + "{% endfor %}")
    assert "<tools>" in template.render([ASK], tools=[TOOL])
