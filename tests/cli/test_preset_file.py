"""llama-server's file of presets: which flags its sections mean, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.cli.serve import parser
from localspec.cli.shared.arguments import pair_request
from localspec.cli.shared.preset_file import Preset, Presets, read_presets
from localspec.errors import UserError
from localspec.models.names import parse
from localspec.types.models import GivenTemplate

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> str:
        path = tmp_path / "models.ini"
        path.write_text(text, "utf-8")
        return str(path)

    return written


def presets(file: str, *argv: str) -> Presets:
    return read_presets(file, argv, parser())


def only(file: str, *argv: str) -> Preset:
    (found,) = presets(file, *argv).sections
    return found


def test_keys_are_flags_in_all_of_llama_servers_spellings(write: Write) -> None:
    file = write(
        "version = 1\n; a comment\n[*]\nc = 4096\nn-gpu-layers = 8\n\n"
        "[user/repo:Q8_0]\nLLAMA_ARG_CTX_SIZE = 2048 ; less\nmmap = false\njinja = true\nno-swa-full = true\n"
        "kv-unified = false\n"
        "alias = small, quick\nseed = -1\nload-on-startup = on\n"
        "[mine]\nhf-repo = user/repo\nspec-draft-hf = user/draft\ncpu-moe = 1\nparallel = 2\nembedding = no\n"
    )
    first, second = presets(file).sections
    request = pair_request(first.args)
    assert (first.name, first.has_source, request.target.name) == ("user/repo:Q8_0", False, "user/repo:Q8_0")
    assert (request.context, request.target.gpu_layers, request.mmap) == (2048, 8, False)
    assert not first.args.kv_unified
    assert second.args.kv_unified
    assert (first.aliases, first.opens_at_start, first.args.seed) == (("small", "quick"), True, None)
    request = pair_request(second.args)
    assert (request.target.name, request.draft.name) == (parse("user/repo"), parse("user/draft"))
    assert (request.context, request.target.experts_at_home) == (4096, "all")
    assert (second.args.parallel, second.encodes, second.opens_at_start) == (2, None, False)
    others = pair_request(presets(file).args)  # of models without a section
    assert (others.context, others.target.gpu_layers, others.target.name) == (4096, 8, None)


def test_the_command_line_goes_before_the_file_but_for_models(write: Write) -> None:
    file = write("[mine]\nmodel = mine.gguf\nc = 2048\ntemp = 0.5\n")
    found = only(file, "-c", "512", "-m", "first.gguf", "-md", "draft.gguf")
    assert (found.args.model, found.args.model_draft, found.args.context) == ("mine.gguf", None, 512)
    assert (found.args.temperature, found.args.parallel) == (0.5, 4)
    assert presets(file, "-m", "first.gguf").args.model == "first.gguf"


def test_a_section_may_name_a_template_and_a_pooling(write: Write) -> None:
    file = write(
        "[mine]\nmodel = mine.gguf\nchat-template = llama3\n"
        "[vectors]\nmodel = vectors.gguf\nembedding = on\npooling = cls\n"
    )
    first, second = presets(file).sections
    assert (first.args.chat_template, first.args.pooling) == (GivenTemplate("llama3"), None)
    assert (second.encodes, second.args.pooling) == ("embeddings", "cls")


@pytest.mark.parametrize("text", ["", "\n\n# nothing\n", "version = 1\n", "[*]\nc = 512\n"])
def test_no_section_is_no_model(write: Write, text: str) -> None:
    assert presets(write(text)).sections == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[mine\nmodel = a\n", "line 1: this is neither [NAME] nor KEY = VALUE"),
        ("[mine]\nmodel\n", "line 2: this is neither"),
        ("[mine]\nc = 1\nc = 2\n", "line 3: `c` is in [mine] twice"),
        ("[a]\n\n[a]\n", "line 3: [a] is there twice"),
        ("[mine]\nctx-sise = 512\n", "[mine]: `ctx-sise` is not a flag of models; did you mean `ctx-size`?"),
        ("[mine]\nprompt = a\n", "[mine]: `prompt` is not a flag of models"),
        ("[mine]\nc = many\n", "[mine]: -c/--ctx-size: `many` is not a whole number"),
        ("[*]\nmodels-max = 1\n", "[*]: `models-max` is not for one model, but for the server; start"),
        ("[mine]\nsleep-idle-seconds = 60\n", "start the server with --idle"),
        ("[mine]\nmmap = perhaps\n", "[mine]: `mmap` is neither on nor off: `perhaps`"),
        ("[mine]\nembedding =\n", "`embedding` is neither on nor off"),
    ],
)
def test_what_is_wrong_is_named(write: Write, text: str, complaint: str) -> None:
    with pytest.raises(UserError) as found:
        presets(write(text))
    assert complaint in str(found.value)
    assert "models.ini" in str(found.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read preset file .*gone\.ini"):
        presets(str(tmp_path / "gone.ini"))
