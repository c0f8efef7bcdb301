"""A chat template of one's own: by flag for once, by config.toml for models by name."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec.app.checks import files
from localspec.app.opener import LocalOpener, OpeningWatch, SshOpener
from localspec.benchmark.llama_server import target_flags
from localspec.cli import screen
from localspec.cli.shared.arguments import pair_request
from localspec.demo import bundled_pair
from localspec.errors import UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import remote
from localspec.inference.runtime import Runtime
from localspec.inference.worker.client import Worker
from localspec.models.pair_request import ModelChoice
from localspec.storage.pair_identity import MachineFacts, identify
from localspec.storage.paths import config_dir
from localspec.types.models import GivenTemplate, ModelOptions
from localspec.types.request import Message, Request
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime
from tests.cli.requests import unplaced

OWN = "{% for m in messages %}({{ m.role }}: {{ m.content }}){% endfor %}"
TARGET, DRAFT = bundled_pair()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.jinja"
    path.write_text(OWN, encoding="utf-8")
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.jinja"
    path.write_text(OWN + "!", encoding="utf-8")
    return path


def write_config(text: str) -> None:
    (config_dir() / "config.toml").write_text(text, encoding="utf-8")


def test_the_flag_names_it_for_the_target_alone(fake: FakeRuntime, invoke: Invoke, own: Path) -> None:
    for verb in ("run", "chat"):
        question = ("Hi",) if verb == "run" else ()
        flags = ("-m", "big.gguf", "-md", "small.gguf", "--chat-template-file", str(own))
        assert invoke(verb, *question, *flags, piped=b"").code == 0
    for options in fake.opened:
        assert options.target.chat_template == own
        assert options.draft is not None
        assert options.draft.chat_template is None


def test_a_name_or_a_text_goes_in_the_place_of_a_file(fake: FakeRuntime, invoke: Invoke, own: Path) -> None:
    write_config(f'[templates]\n"*" = "{own.as_posix()}"\n')
    for words, expected in (
        (("--chat-template", "llama3"), GivenTemplate("llama3")),
        (("--chat-template", OWN), GivenTemplate(OWN)),
        (("--chat-template", "llama3", "--chat-template-file", str(own)), own),
        (("--chat-template-file", str(own), "--chat-template=chatml"), GivenTemplate("chatml")),
        (("--chat-template", ""), None),
        ((), own),
    ):
        assert invoke("run", "Hi", "-m", "big.gguf", *words).code == 0
        assert fake.opened[-1].target.chat_template == expected
    outcome = invoke("run", "Hi", "-m", "big.gguf", "--chat-template", "lama3")
    assert outcome.code == 2
    assert "did you mean llama3?" in outcome.err


def test_a_template_by_name_is_told_of(invoke: Invoke) -> None:
    assert "Chats follow the template chatml, not the one" in invoke("plan", "--chat-template", "chatml").out
    assert json.loads(invoke("plan", "--chat-template", "chatml", "--json").out)["chat_template"] == "chatml"


@pytest.mark.parametrize("verb", ["", "run", "chat", "serve", "bench", "verify", "tune", "plan"])
def test_every_verb_that_opens_models_has_the_flag(verb: str, invoke: Invoke) -> None:
    words = [verb] if verb else []
    outcome = invoke(*words, "--chat-template-file", "gone.jinja", piped=b"Hi")
    assert outcome.code == 2
    assert "error: the chat template gone.jinja cannot be read: No such file or directory" in outcome.err


def test_a_mistake_in_the_flag_costs_no_download(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    outcome = invoke("run", "Hi", "-hf", "someone/model", "--chat-template-file", "gone.jinja")
    assert (outcome.code, "gone.jinja" in outcome.err) == (2, True)


@pytest.mark.usefixtures("fake")
def test_a_bare_text_has_no_template(invoke: Invoke, own: Path) -> None:
    outcome = invoke("run", "--no-chat", "Hi", "--chat-template-file", str(own))
    assert outcome.code == 2
    assert "leave out --chat-template-file" in outcome.err
    outcome = invoke("run", "--no-chat", "Hi", "--chat-template", "chatml")
    assert "leave out --chat-template" in outcome.err


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("big-Q4_K_M.gguf", True),
        ("big-Q4_K_M", True),
        ("BIG-q4_k_m", True),
        ("big-*", True),
        ("*", True),
        ("big", False),
        ("bigger-*", False),
        ("{folder}/big-Q4_K_M.gguf", True),
        ("{folder}/big-*", True),
        ("*/models/big-*", True),
        ("{folder}/other.gguf", False),
    ],
)
def test_config_names_it_by_the_file_of_a_model(
    fake: FakeRuntime, invoke: Invoke, own: Path, tmp_path: Path, name: str, fits: bool
) -> None:
    folder = tmp_path / "models"
    write_config(f'[templates]\n"{name.format(folder=folder.as_posix())}" = "{own.as_posix()}"\n')
    assert invoke("run", "Hi", "-m", str(folder / "big-Q4_K_M.gguf")).code == 0
    assert fake.opened[0].target.chat_template == (own if fits else None)


def test_a_model_in_parts_goes_by_the_name_of_the_whole(fake: FakeRuntime, invoke: Invoke, own: Path) -> None:
    write_config(f'[templates]\nbig.gguf = "{own.as_posix()}"\n')  # without quotes, as users write
    assert invoke("run", "Hi", "-m", "big-00001-of-00002.gguf").code == 0
    assert fake.opened[0].target.chat_template == own


def test_the_first_line_that_fits_counts_and_a_flag_goes_before(
    fake: FakeRuntime, invoke: Invoke, own: Path, other: Path
) -> None:
    text = '[templates]\n"plain-*" = ""\n"big-*" = "{0}"\n"*" = "{1}"\n'
    write_config(text.format(own.as_posix(), other.as_posix()))
    for model, flags, expected in (
        ("plain-1.gguf", (), None),
        ("big-1.gguf", (), own),
        ("tiny.gguf", (), other),
        ("big-1.gguf", ("--chat-template-file", str(other)), other),
        ("big-1.gguf", ("--chat-template-file", ""), None),
        ("big-1.gguf", ("--chat-template-file", str(other), "--chat-template-file", ""), None),
    ):
        assert invoke("run", "Hi", "-m", model, *flags).code == 0
        assert fake.opened[-1].target.chat_template == expected


def test_paths_count_from_the_folder_of_config(fake: FakeRuntime, invoke: Invoke, empty_home: Path) -> None:
    for text, path in (("t.jinja", config_dir() / "t.jinja"), ("~/t.jinja", empty_home / "t.jinja")):
        path.write_text(OWN, encoding="utf-8")
        write_config(f'[templates]\n"*" = "{text}"\n')
        assert invoke("run", "Hi", "-m", "big.gguf").code == 0
        assert fake.opened[-1].target.chat_template == path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"someone/model-GGUF:Q4_K_M" = "t.jinja"', "line 2: `someone/model-GGUF:Q4_K_M` is not the name"),
        ('"big" = 3', "line 2: `big` has to be a text, not 3"),
        ('"big" = "gone.jinja"', "gone.jinja cannot be read: No such file or directory"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_mistakes_in_config_are_reported(invoke: Invoke, text: str, words: str) -> None:
    write_config(f"[templates]\n{text}\n")
    outcome = invoke("run", "Hi", "-m", "big.gguf")
    assert outcome.code == 2
    assert words in outcome.err


@pytest.mark.slow
def test_it_is_reported_where_one_asks(invoke: Invoke, own: Path) -> None:
    told = f"Chats follow the template {own}, not the one in the model's file."
    flags = ("--chat-template-file", str(own))
    assert told in invoke("plan", *flags).out
    assert json.loads(invoke("plan", *flags, "--json").out)["chat_template"] == str(own)
    assert told in invoke("run", "Hi", "-n", "1", "--explain", *flags).err
    assert "template" not in invoke("plan").out
    write_config(f'[models]\ntarget = "{TARGET.as_posix()}"\n[templates]\ndemo-target = "{own.as_posix()}"\n')
    assert f"from {own}, as config.toml says" in invoke("show", "demo-target").out
    told = json.loads(invoke("show", "demo-target", "--json").out)["chat_template"]
    assert told["file"] == str(own)
    assert json.loads(invoke("show", "demo-draft", "--json").out)["chat_template"]["file"] is None
    (check,) = (each for each in files.models() if each.name == "chat template")
    assert (check.verdict, check.text) == (
        "pass",
        f"`{own}` is in order, and is used instead of that of `demo-target.gguf`",
    )
    own.write_text("{{ oops", encoding="utf-8")
    (check,) = (each for each in files.models() if each.name == "chat template")
    assert check.verdict == "fail"
    assert f"the chat template {own} has a mistake" in check.text


def test_what_is_tuned_and_measured_holds_whatever_the_template(own: Path) -> None:
    plain, machine = ModelOptions(TARGET, context=128, threads=1), MachineFacts("x", 2)
    given = replace(plain, chat_template=own)
    assert identify(plain, None, machine) == identify(given, None, machine)
    with Runtime.open(OpenPlan(plain)) as one, Runtime.open(OpenPlan(given)) as other:
        files = {each._contexts.costs_file(together=False) for each in (one, other)}
    assert len(files) == 1


def test_the_server_of_llama_cpp_is_given_it_too(own: Path) -> None:
    flags = dict(target_flags(ModelOptions(TARGET, chat_template=own)))
    assert flags["--chat-template-file"] == str(own)
    assert "--chat-template-file" not in dict(target_flags(ModelOptions(TARGET)))
    by_name = dict(target_flags(ModelOptions(TARGET, chat_template=GivenTemplate("llama3"))))
    assert by_name["--chat-template"] == "llama3"


@pytest.mark.slow
def test_on_the_screen_a_flag_holds_for_its_own_model(own: Path) -> None:
    args = screen.parser().parse_args(["-m", str(TARGET), "--chat-template-file", str(own)])
    models = LocalOpener(pair_request(args))
    asked = Request((Message("user", "Hi"),))
    for choice, is_own in (
        (None, True),
        (ModelChoice(TARGET, DRAFT), True),
        (ModelChoice(DRAFT, None), False),
        (ModelChoice(TARGET, None), True),
    ):
        with closing(models.open(choice, OpeningWatch()).models) as opened:
            assert isinstance(opened, Worker)
            assert (opened.render(asked) == "(user: Hi)") == is_own


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--chat-template-file", "t.jinja"), Path("t.jinja")),
        (("--chat-template", "llama3"), GivenTemplate("llama3")),
        (("--chat-template=llama3",), GivenTemplate("llama3")),
    ],
)
def test_on_another_machine_a_flag_holds_for_its_own_model(
    flags: tuple[str, ...], expected: Path | GivenTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[str]] = []

    class Opened(SimpleNamespace):
        def __init__(self, _host: str, words: list[str], *_: object) -> None:
            sent.append(words)
            super().__init__(target=SimpleNamespace(path=Path("/there/a.gguf")))

    monkeypatch.setattr(remote, "RemoteModels", Opened)
    words = ["-m", "a.gguf", *flags]
    models = SshOpener("me@there", words, "localspec", pair_request(screen.parser().parse_args(words)))
    for choice in (None, ModelChoice(Path("/there/a.gguf"), None), ModelChoice(Path("/there/b.gguf"), None)):
        models.open(choice, OpeningWatch())
    first, same, another = (screen.parser().parse_args(each).chat_template for each in sent)
    assert (first, same, another) == (expected, expected, None)


def test_a_template_that_is_gone_when_the_models_open_again_is_reported(own: Path) -> None:
    args = screen.parser().parse_args(["-m", str(TARGET), "--chat-template-file", str(own)])
    pair = unplaced(args)
    own.unlink()
    with pytest.raises(UserError, match=r"own\.jinja cannot be read"):
        LocalOpener(pair_request(args)).open(None, OpeningWatch())
    assert pair.target.chat_template == own
