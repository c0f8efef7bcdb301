"""Model files that lie: the client that reads them refuses in a line, soon, and with little memory."""

from __future__ import annotations

import io
import json
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from hypothesis import given, seed

from localspec.cli.main import main
from localspec.demo import bundled_pair
from localspec.errors import EngineError, UserError
from localspec.gguf import header_of, read_header, read_tokens
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.models.shape import read_shape, shape_of_parts
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request, Sampling
from tests.campaign.gguf_edits import Base, Edit, any_edits, drawn
from tests.campaign.log import PROMPT_S, Log, require, thorough
from tests.llama import tiny

CORPUS = Path(__file__).with_name("corpus.jsonl")
MAX_BYTES = 256 << 20  # that reading a header may take, whatever it says
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
_BATCH = 100
_CHAT = (Message("user", "Hello!"),)


def bases(folder: Path) -> tuple[Base, ...]:
    """Return the files to start from: the bundled ones, and made ones of four kinds."""
    folder.mkdir(exist_ok=True, parents=True)
    target, draft = bundled_pair()
    made = {
        "made": lambda path: tiny.llama(path, template="{% for m in messages %}{{ m.content }}{% endfor %}"),
        "window": tiny.sliding_window,
        "recurrent": tiny.recurrent,
        "mixture": tiny.mixture,
    }
    written = [Base(name, make(folder / f"{name}.gguf")) for name, make in made.items()]
    return Base("target", target), Base("draft", draft), *written


def corpus() -> Iterator[tuple[str, tuple[Edit, ...]]]:
    """Yield what once went wrong, or was interesting: a file's name and its edits."""
    for line in CORPUS.read_text("utf-8").splitlines():
        entry = json.loads(line)
        yield entry["base"], tuple(tuple(edit) for edit in entry["edits"])


def headers(log: Log, folder: Path) -> None:
    """Read files with edits as `show`, `plan` and the client that looks at models do, in this process."""
    known = {base.name: base for base in bases(folder / "bases")}
    kept = list(corpus())
    path = folder / "edited.gguf"
    for number in log.numbers():
        rng = log.random(number)
        if number < len(kept):
            name, edits = kept[number]
        else:
            name = rng.choice([*known, "made", "made"])  # the small ones are quick to read
            edits = drawn(rng, {"window": "gemma2", "recurrent": "mamba"}.get(name, "llama"))
        with log.case(number, PROMPT_S, _short(name, edits), computes=True):
            check(known[name].edited(edits, path, weights=False), plans=number % 25 == 0)


def _short(name: str, edits: Sequence[Edit]) -> str:
    return f"{name} {edits!r}"[:300]


def shrunk(log: Log, folder: Path) -> None:
    """Let Hypothesis look for the smallest edits that break a reader."""
    made = bases(folder / "bases")[2]
    path = folder / "shrunk.gguf"

    for number, count in log.batches(_BATCH):

        @seed(f"{log.seed} {number}")
        @thorough(count)
        @given(any_edits)
        def reads(edits: Sequence[Edit]) -> None:
            check(made.edited(edits, path, weights=False))

        log.cases += count - 1
        with log.case(number):
            reads()


def check(path: Path, *, plans: bool = False) -> None:
    """Read a file in every way; raise what must not happen."""
    memory = peak_bytes()
    for read in (read_header, read_shape, _tokens, _in_ranges):
        with suppress(UserError):
            read(path)
    show = ("show", str(path))
    for words in (show, (*show, "--json"), *((("plan", "-m", str(path)),) if plans else ())):
        verb(words)
    grown = peak_bytes() - memory
    require(grown < MAX_BYTES, f"reading took {grown >> 20} MiB")


def _tokens(path: Path) -> object:
    return read_tokens(read_header(path))


def _in_ranges(path: Path) -> object:
    """Read as from the hub, where a header comes in pieces."""
    with path.open("rb") as file:
        size = file.seek(0, 2)

        def piece(start: int, count: int) -> bytes:
            file.seek(start)
            return file.read(count)

        with suppress(UserError):
            header_of(piece, size, path)
        return shape_of_parts(((piece, size),), "far/away")


def verb(words: Sequence[str]) -> int:
    """Run a command in this process; what it prints is safe, and a refusal is a line."""
    printed, told = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(told):
        code = main(words)
    output, errors = printed.getvalue(), told.getvalue()
    require(code in (0, 2), f"`{words[0]}` ended with {code}: {errors[:300]}")
    require("Traceback" not in output + errors, f"`{words[0]}` printed a traceback: {errors[-300:]}")
    require(
        (unsafe := _UNSAFE.search(output + errors)) is None, f"`{words[0]}` printed {unsafe and unsafe[0]!r}"
    )
    require(code == 0 or errors.count("\n") <= 2, f"`{words[0]}` refused in many lines: {errors[:300]}")
    if "--json" in words and code == 0:
        json.loads(output)
    return code


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def opened(log: Log, folder: Path) -> None:
    """Open edited files in the engine's process, and ask: that it refuses or dies is reported in a line."""
    known = {base.name: base for base in bases(folder / "bases")}
    path = folder / "opened.gguf"
    for number in log.numbers():
        rng = log.random(number)
        name = rng.choice(["made", "made", "window", "recurrent", "mixture", "draft"])
        edits = drawn(rng, {"window": "gemma2", "recurrent": "mamba"}.get(name, "llama"))
        edits = tuple(edit for edit in edits if edit[0] != "size")
        with log.case(number, 10.0, _short(name, edits)):
            answered_or_told(known[name].edited(edits, path))


def answered_or_told(path: Path) -> None:
    """Open a file and ask once."""
    sampling, plain = Sampling(temperature=0.0), EngineSettings(mode="off")
    try:
        with Worker.open(OpenPlan(ModelOptions(path, context=128, micro_batch=32, threads=1))) as worker:
            list(worker.generate(Request(_CHAT, sampling, plain, max_tokens=4, seed=1)))
    except (UserError, EngineError) as error:
        require("\n" not in str(error), f"told in several lines: {error}")
        require(_UNSAFE.search(str(error)) is None, f"told with control characters: {error!r}")
        # an engine that fails in Python has met what no one thought of
        require("the engine failed:" not in str(error), str(error))
