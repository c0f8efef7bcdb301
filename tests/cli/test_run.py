from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from errno import EACCES, EMFILE, ENOSPC
from pathlib import Path

import pytest

from localspec import units
from localspec.cli.shared.console import ERASE_LINE, ConsoleStatus
from localspec.errors import Cancelled, ContextFullError, EngineError, ModelFileError
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, GenerationEvent, PromptProgress, Summary, TextDelta, TextPiece
from localspec.types.request import EngineSettings, Grammar, Message, Request
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import SUMMARY, FakeRuntime, says

ROOT = Path(__file__).parents[2]


def test_the_answer_alone_is_on_standard_output(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Hello\n", "")
    assert fake.requests[0].prompt == (Message("user", "Hi"),)
    assert fake.closed


def test_an_answer_that_ends_its_line_gets_no_second_end(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("done\n")]
    assert invoke("run", "Hi").out == "done\n"


@pytest.mark.parametrize(
    ("arguments", "piped", "prompt"),
    [
        (["run", "a", "b"], b"", "a b"),
        (["run"], b"from a pipe\n", "from a pipe"),
        (["run", "Explain:"], b"x = 1\n", "Explain:\n\nx = 1"),
        (["run", "-n", "5", "Hi"], b"", "Hi"),
        (["run", "Hi", "-n", "5", "there"], b"", "Hi there"),
        (["run", "-p", "Hi"], b"", "Hi"),
        (["run"], "\ufeffgrüß dich".encode(), "grüß dich"),
        (["What is this?"], b"", "What is this?"),
        (["-n", "5", "What is this?"], b"", "What is this?"),
        ([], b"only a pipe", "only a pipe"),
        (["-p", "Explain:"], b"x", "Explain:\n\nx"),
    ],
)
def test_prompts(fake: FakeRuntime, invoke: Invoke, arguments: list[str], piped: bytes, prompt: str) -> None:
    assert invoke(*arguments, piped=piped).code == 0
    assert fake.requests[0].prompt == (Message("user", prompt),)


@pytest.mark.parametrize(
    ("piped", "complaint"),
    [
        (b"abc\xff", "not UTF-8 text: byte 0xff at offset 3"),
        (b"ab\0c", "binary: a zero byte at offset 2"),
        (b"", "standard input is empty"),
        (b" \n", "standard input is empty"),
    ],
)
def test_bad_standard_input(fake: FakeRuntime, invoke: Invoke, piped: bytes, complaint: str) -> None:
    outcome = invoke("run", piped=piped)
    assert outcome.code == 2
    assert complaint in outcome.err
    assert outcome.out == ""
    assert fake.opened == []


def test_no_prompt_at_a_terminal(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("run", typed="")
    assert outcome.code == 2
    assert "there is no prompt" in outcome.err
    assert fake.opened == []


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("words", "complaint"), [([""], "is empty"), (["\udcff"], "not valid text")])
def test_bad_prompt_argument(invoke: Invoke, words: list[str], complaint: str) -> None:
    outcome = invoke("run", *words)
    assert outcome.code == 2
    assert complaint in outcome.err


def test_a_raw_continuation_has_no_messages(fake: FakeRuntime, invoke: Invoke) -> None:
    invoke("run", "--no-chat", "Once upon")
    assert fake.requests[0].prompt == "Once upon"


def test_the_system_prompt_comes_from_a_flag_or_a_file(
    fake: FakeRuntime, invoke: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "system.txt"
    file.write_text("Be kind.\n", encoding="utf-8")
    invoke("run", "Hi", "-sys", "Be brief.")
    invoke("run", "Hi", "-sysf", str(file))
    assert [r.prompt[0] for r in fake.requests] == [
        Message("system", "Be brief."),
        Message("system", "Be kind."),
    ]


def test_json_is_one_object_with_llama_cpp_names(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.notes = ("one note",)
    outcome = invoke("run", "Hi", "--json")
    value = json.loads(outcome.out)
    assert value["schema"] == 1
    assert value["text"] == "Hello"
    assert value["finish_reason"] == "stop"
    assert (value["mode"], value["speculation"]["reason"]) == ("sd", "measured")
    assert value["model"]["name"] == "big"
    assert value["draft"]["path"] == "small.gguf"
    assert value["notes"] == ["one note"]
    timings = value["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (10, 8)
    assert (timings["prompt_n"], timings["cache_n"], timings["prompt_per_second"]) == (15, 5, 30.0)
    assert (timings["predicted_n"], timings["predicted_per_second"]) == (13, 6.0)
    assert value["speculation"]["accepted_by_position"] == [1.0, 0.75, 0.5]
    assert value["speculation"]["hit_rate"] == 0.75
    assert value["speculation"]["settings"]["draft_length"] == 12


def test_json_of_an_answer_without_a_draft_or_a_token(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.draft = None
    fake.scripts = [lambda _request: iter([Finished("stop", Summary())])]
    value = json.loads(invoke("run", "Hi", "--json", "-m", "x.gguf").out)
    assert value["draft"] is None
    assert value["text"] == ""
    assert value["timings"]["predicted_per_second"] == 0


@pytest.mark.usefixtures("fake")
def test_figures_go_to_standard_error(invoke: Invoke) -> None:
    outcome = invoke("run", "Hi", "--stats")
    assert outcome.out == "Hello\n"
    lines = dict(line.split("  ", 1) for line in outcome.err.splitlines())
    table = {name.strip(): text.strip() for name, text in lines.items()}
    assert table["mode"] == "speculative (measured)"
    assert table["answer"] == "13 tokens, 6.0 tokens/s"
    assert table["prompt"].endswith("30 tokens/s")
    assert table["acceptance"].startswith("80%")
    assert table["accepted length"].startswith("3.00 ")
    assert table["by position"] == "100% 75% 50%"
    assert table["hit rate"].startswith("75%")
    assert table["per round"].startswith("verify 300.00 ms, draft 100.00 ms, wait 50.00 ms, Python 25.00 ms")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ContextFullError("too long", "shorten it"), 2, "error: too long\n  hint: shorten it\n"),
        (ModelFileError("no such file"), 2, "error: no such file\n"),
        (EngineError("out of\nmemory"), 1, "error: out of memory\n"),
        (Cancelled(), 130, ""),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
        (OSError(ENOSPC, "No space left on device"), 1, "error: cannot write: No space left on device\n"),
        (OSError(EMFILE, "Too many open files"), 1, "error: the system refuses: Too many open files\n"),
        (
            PermissionError(EACCES, "Permission denied", "/x"),
            1,
            "error: the system refuses: Permission denied (/x)\n",
        ),
    ],
)
def test_every_error_has_its_line_and_code(
    fake: FakeRuntime, invoke: Invoke, error: BaseException, code: int, text: str
) -> None:
    def fails(_request: Request) -> Iterator[GenerationEvent]:
        yield TextDelta((TextPiece("so far", Provenance.TARGET),))
        raise error

    fake.scripts = [fails]
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.err) == (code, text)
    assert outcome.out.startswith("so far")
    assert fake.closed


@pytest.mark.parametrize("verbose", [False, True])
def test_a_mistake_of_ours_is_one_line_and_a_traceback_on_request(
    fake: FakeRuntime, invoke: Invoke, verbose: bool
) -> None:
    def fails(_request: Request) -> Iterator[GenerationEvent]:
        raise ZeroDivisionError("oh")

    fake.scripts = [fails]
    outcome = invoke("run", "Hi", *["-v"] * verbose)
    assert outcome.code == 1
    assert "error: unexpected ZeroDivisionError: oh" in outcome.err
    assert ("Traceback" in outcome.err) == verbose


def interrupts(fake: FakeRuntime) -> None:
    """Let the first answer press Ctrl+C after a few words."""

    def script(_request: Request) -> Iterator[GenerationEvent]:
        yield TextDelta((TextPiece("half an", Provenance.TARGET),))
        os.kill(os.getpid(), signal.SIGINT)
        reason = "cancelled" if fake.cancelled.wait(timeout=20) else "stop"
        assert reason == "cancelled"
        yield Finished("cancelled", SUMMARY)

    fake.scripts.insert(0, script)


def test_ctrl_c_prints_what_came(fake: FakeRuntime, invoke: Invoke) -> None:
    interrupts(fake)
    before = signal.getsignal(signal.SIGINT)
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.out, outcome.err) == (130, "half an\n", "")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_leaves_valid_json(fake: FakeRuntime, invoke: Invoke) -> None:
    interrupts(fake)
    outcome = invoke("run", "Hi", "--json")
    value = json.loads(outcome.out)
    assert (outcome.code, value["text"], value["finish_reason"]) == (130, "half an", "cancelled")


def test_a_reader_that_leaves_early_is_not_an_error() -> None:
    code = (
        "import sys; from localspec.__main__ import main\n"
        "from tests.cli.fake_runtime import FakeRuntime, says\n"
        "FakeRuntime([says(*['words and words '] * 20000)]).install(setattr)\n"
        "sys.exit(main(['run', 'Hi']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(("total", "shown"), [(100, False), (5000, True)])
def test_progress_shows_for_long_prompts_on_a_terminal(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, total: int, shown: bool
) -> None:
    def script(request: Request) -> Iterator[GenerationEvent]:
        yield PromptProgress(total // 2, total)
        yield from says("Hi")(request)

    fake.scripts = [script]
    assert "reading" not in invoke("run", "Hi").err
    monkeypatch.setattr("localspec.cli.shared.console.is_terminal", lambda stream: stream is sys.stderr)
    outcome = invoke("run", "Hi")
    assert ("reading the prompt: 50%" in outcome.err) == shown
    assert outcome.out == "Hi\n"


@pytest.mark.parametrize("phase", ["choosing", "writing"])
def test_a_gpu_that_makes_its_programs_is_reported_until_the_answer_comes(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    told = threading.Event()
    update = ConsoleStatus.update

    def watched(line: ConsoleStatus, text: str) -> None:
        update(line, text)
        fake.makes_programs_s = None
        told.set()

    def compiles(_settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        fake.makes_programs_s = 12.3
        assert told.wait(timeout=20)
        return EngineSettings(mode="off"), "measured"

    def script(request: Request) -> Iterator[GenerationEvent]:
        if phase == "writing":
            compiles()
        yield from says("Hi")(request)

    fake.scripts = [script]
    monkeypatch.setattr(ConsoleStatus, "update", watched)
    monkeypatch.setattr("localspec.cli.shared.console.is_terminal", lambda stream: stream is sys.stderr)
    if phase == "choosing":
        monkeypatch.setattr(fake, "choose_settings", compiles)
    outcome = invoke("run", "Hi")
    assert "compiling GPU kernels, once: 12 s so far" in outcome.err
    assert outcome.err.endswith(ERASE_LINE)
    assert outcome.out == "Hi\n"


def test_a_terminal_is_not_steered_by_the_answer(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.scripts = [says("a\x1b[2Jb\tc\n")]
    assert invoke("run", "Hi").out == "a\x1b[2Jb\tc\n"
    monkeypatch.setattr("localspec.cli.shared.console.is_terminal", lambda _stream: True)
    assert invoke("run", "Hi", typed="").out == "ab\tc\n"


def test_an_answer_that_repeats_itself_says_so(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("on and on and on", reason="circles")] * 3
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.out) == (0, "on and on and on\n")
    assert "was ended because it repeats itself; add --ignore-circles to continue" in outcome.err
    assert json.loads(invoke("run", "Hi", "--json").out)["finish_reason"] == "circles"
    invoke("run", "Hi", "--ignore-circles")
    assert [request.ignores_circles for request in fake.requests] == [False, False, True]


def test_color_marks_the_origin(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("t", "a", "p")]
    assert invoke("run", "Hi", "--color").out == "t\x1b[32ma\x1b[0m\x1b[36mp\x1b[0m\n"
    assert invoke("run", "Hi", "--no-color").out == "tap\n"


def test_a_full_context_is_reported(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("cut", reason="context")]
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.out) == (0, "cut\n")
    assert "context of 512 tokens is full" in outcome.err


def test_what_the_answer_looks_like_comes_from_a_file(
    fake: FakeRuntime, invoke: Invoke, tmp_path: Path
) -> None:
    schema, grammar = tmp_path / "a.json", tmp_path / "a.gbnf"
    schema.write_text('{"type": "object"}', encoding="utf-8")
    grammar.write_text('root ::= "yes" | "no"', encoding="utf-8")
    fake.scripts = [says("{}"), says("y", reason="length")]
    assert invoke("run", "Hi", "--json-schema", str(schema)).err == ""
    cut = invoke("run", "Hi", "--grammar", str(grammar), "-n", "1")
    assert "note: the answer was cut off before it matched the grammar" in cut.err
    assert [request.grammar for request in fake.requests] == [
        Grammar("json_schema", '{"type": "object"}'),
        Grammar("gbnf", 'root ::= "yes" | "no"'),
    ]


def test_run_says_what_of_a_schema_was_not_enforced_and_whether_it_is_met(
    fake: FakeRuntime, invoke: Invoke
) -> None:
    fake.scripts = [says("[1, 2]"), says("[1, 1]")]
    asked = ("run", "Hi", "--json-schema", '{"uniqueItems": true}')
    told = "note: the JSON schema of the answer is not enforced at #/uniqueItems; "
    assert invoke(*asked).err == f"{told}it is met\n"
    assert invoke(*asked).err.startswith(f"{told}its schema is not met at its top: [1,1]")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read JSON schema file"),
        (b"{", "the JSON schema cannot be used: Expecting property name"),
        (b'{"not": {}}', "the JSON schema cannot be used: at #: unsatisfiable"),
        (b"\xff", "is not UTF-8 text: byte 0xff at offset 0"),
    ],
)
def test_a_bad_schema_is_reported_before_models_open(
    fake: FakeRuntime, invoke: Invoke, tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "a.json"
    if content is not None:
        file.write_bytes(content)
    outcome = invoke("run", "Hi", "--json-schema", str(file))
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert not fake.requests


def test_a_schema_and_a_grammar_exclude_each_other(invoke: Invoke) -> None:
    outcome = invoke("run", "Hi", "--json-schema", "a", "--grammar", "b")
    assert outcome.code == 2
    assert "--json-schema and --grammar cannot be combined" in outcome.err


FILE = Message("user", 'File main.py:\n```\nprint("hello")\n```\n\nWhat does @main.py do?')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "main.py").write_text('print("hello")\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "arguments",
    [("run", "What does @main.py do?"), ("-p", "What does @main.py do?"), ("What does @main.py do?",)],
)
def test_a_file_that_the_question_names_is_attached(
    fake: FakeRuntime, invoke: Invoke, arguments: tuple[str, ...]
) -> None:
    outcome = invoke(*arguments)
    assert (outcome.code, outcome.err) == (0, "attached main.py, 15 bytes\n")
    assert fake.requests[0].prompt == (FILE,)


def test_paths_that_were_dropped_are_attached(folder: Path, fake: FakeRuntime, invoke: Invoke) -> None:
    (folder / "my notes.txt").write_text("milk")
    outcome = invoke("run", "Compare", str(folder / "main.py"), f"file://{folder}/my%20notes.txt")
    assert (outcome.code, outcome.err) == (0, "attached main.py, 15 bytes\nattached my notes.txt, 4 bytes\n")
    question = fake.requests[0].prompt[-1]
    assert isinstance(question, Message)
    assert question.content.endswith('Compare @main.py @"my notes.txt"')


def test_a_path_within_a_question_stays_text(folder: Path, fake: FakeRuntime, invoke: Invoke) -> None:
    question = f"What is {folder}/main.py for?"
    assert invoke("run", question).err == ""
    assert fake.requests[0].prompt == (Message("user", question),)


@pytest.mark.usefixtures("folder")
def test_folders_and_patterns_of_a_question(fake: FakeRuntime, invoke: Invoke) -> None:
    Path("empty.py").touch()
    outcome = invoke("run", "What is in @./ and @./*.py?")
    assert outcome.err == (
        "attached ./ (a list; @./** attaches the files), 35 bytes\nattached ./main.py, 15 bytes\n"
        "note: ./*.py: 1 of 2 files attached; not empty.py (empty)\n"
    )
    assert "Folder ./:" in str(fake.requests[0].prompt)


@pytest.mark.usefixtures("folder")
def test_what_is_piped_below_a_question_names_no_files(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("run", "Explain:", piped=b"@main.py and @missing.py")
    assert outcome.code == 0
    assert outcome.err.startswith("note: read 1 line from standard input")
    assert "attached" not in outcome.err
    assert fake.requests[0].prompt == (Message("user", "Explain:\n\n@main.py and @missing.py"),)


@pytest.mark.parametrize(
    ("arguments", "piped", "why"),
    [
        (("run",), b"What does @main.py do?", "the text is piped in"),
        (("run", "--no-chat", "What does @main.py do?"), b"", "--no-chat continues the text alone"),
        (("run", "What does x@main.py do?"), b"", "the @ is part of an address"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_file_that_is_named_and_not_attached_is_reported(
    fake: FakeRuntime, invoke: Invoke, arguments: tuple[str, ...], piped: bytes, why: str
) -> None:
    outcome = invoke(*arguments, piped=piped)
    assert outcome.code == 0
    assert outcome.err.startswith(f"note: @main.py is not attached: {why}")
    assert "hello" not in str(fake.requests[0].prompt)


@pytest.mark.usefixtures("folder")
def test_a_file_that_is_missing_is_reported_before_anything_is_opened(
    fake: FakeRuntime, invoke: Invoke
) -> None:
    outcome = invoke("run", "What does @mian.py do?")
    assert outcome.code == 2
    assert "there is no file `mian.py`\n  hint: did you mean `main.py`?" in outcome.err
    assert fake.opened == []


@dataclass
class Quick(FakeRuntime):
    """Models that choose by what is known, and measure before the program ends."""

    reason: str = units.UNMEASURED
    limits: list[float] = field(default_factory=list)
    failure: EngineError | None = None

    def known_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        return replace(settings or EngineSettings(), mode="off"), self.reason

    def measure_before_leaving(self, limit_s: float) -> None:
        self.limits.append(limit_s)
        if self.failure is not None:
            raise self.failure

    def is_measuring(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("arguments", "reason", "measures"),
    [([], units.UNMEASURED, 1), (["--mode", "sd"], units.UNMEASURED, 0), ([], "measured", 0)],
)
def test_what_auto_does_not_know_is_measured_once_the_answer_is_complete(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str, measures: int
) -> None:
    fake = Quick(reason=reason)
    fake.install(monkeypatch.setattr)
    outcome = invoke("run", *arguments, "Hi")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Hello\n", "")
    assert len(fake.limits) == measures


def test_an_engine_that_fails_after_the_answer_spoils_nothing(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Quick(failure=EngineError("it died"))
    fake.install(monkeypatch.setattr)
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Hello\n", "")
    assert fake.limits


def test_an_answer_that_was_stopped_is_followed_by_no_measurement(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Quick([says("Hel", reason="cancelled")])
    fake.install(monkeypatch.setattr)
    assert invoke("run", "Hi").code == 130
    assert not fake.limits
