"""Templates that are careless or hostile: each is reported in a line, soon, and harms no one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from localspec.errors import LocalSpecError, ModelFileError, UserError
from localspec.llama import rendering
from localspec.llama.rendering import Renderer
from localspec.types.request import Message
from tests.inference.worker.processes import ends, start_script
from tests.waiting import once

pytestmark = pytest.mark.timeout(60)

HI = [Message("user", "hi")]
LOOPS = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
)


@pytest.fixture(autouse=True)
def _a_busy_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_SECONDS", 40.0)


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    assert renderer.render("{{ messages[0].content }}", {}, HI) == "hi"
    yield renderer
    renderer._started().end()


def complaint(renderer: Renderer, template: str) -> str:
    """What is said of a template, after which the next is none the worse."""
    with pytest.raises(UserError) as caught:
        renderer.render(template, {}, HI)
    said = str(caught.value)
    assert said.startswith("the model's chat template ")
    assert "\n" not in said
    assert len(said) < 700
    assert renderer.render("{{ messages[0].content }}", {}, HI) == "hi"
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        LOOPS,
        LOOPS.replace("{% endfor %}", "x{% endfor %}", 1),
        "{{ (10 ** (10 ** 9)) % 7 }}",
        "{{ 1 }} " * 10**6,
    ],
    ids=["loops", "loops with output", "one long call", "a template of megabytes"],
)
def test_a_template_that_takes_too_long_is_ended(
    renderer: Renderer, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "_SECONDS", 1.0)
    assert "takes longer than 1 s for this conversation; give another" in complaint(renderer, template)


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        DOUBLING,
        "{{ 'x' * 3000000000 }}",
        "{% set s = 'x' * 3000000000 %}hi",
        "{{ 'x' | center(3000000000) }}",
        "{{ '%3000000000d' % 1 }}",
        "{{ 'x'.ljust(3000000000) }}",
        "{{ ('x' * 100000).replace('x', 'x' * 100000) }}",
    ],
)
def test_a_template_that_takes_too_much_memory_is_ended(renderer: Renderer, template: str) -> None:
    assert "takes more than 256 MiB of memory" in complaint(renderer, template)


def test_a_template_that_writes_too_much_is_not_even_read(renderer: Renderer) -> None:
    before = psutil.Process().memory_info().rss
    said = complaint(renderer, "{% for a in range(64) %}{{ 'x' * 1000000 }}{% endfor %}")
    assert "writes 61 MiB for a conversation far shorter" in said
    assert psutil.Process().memory_info().rss < before + 32 * 2**20


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "has a mistake: RecursionError"),
        ("{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}", "has a mistake: RecursionError"),
        ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "has a mistake: RecursionError"),
        ("{{ messages | xmlattr }}", "has a mistake: AttributeError"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ messages.clear() }}", "attribute 'clear' of 'list' object is unsafe"),
        ("{{ raise_exception('one\ntwo\x1b[3m\u202e!') }}", "one two [3m !"),
        ("{{ raise_exception('x' * 100000) }}", "xxx"),
        ("{{ raise_exception(messages) }}", "refuses the conversation"),
        ("{% if %}", "has a mistake: Expected an expression"),
    ],
    ids=range(10),
)
def test_template_errors_name_the_template(renderer: Renderer, template: str, words: str) -> None:
    assert words in complaint(renderer, template)


def test_a_long_honest_conversation_is_rendered(renderer: Renderer) -> None:
    messages = [Message("user", f"{number} " + "words of a long talk " * 20) for number in range(10_000)]
    text = renderer.render("{% for m in messages %}[{{ m.content | trim }}]\n{% endfor %}", {}, messages)
    assert text == "".join(f"[{message.content.strip()}]\n" for message in messages)


def test_a_long_text_of_other_scripts_is_rendered(renderer: Renderer) -> None:
    content = "\u6c49\U0001f30a" * 10**6
    assert renderer.render("{{ messages[0].content }}", {}, [Message("user", content)]) == content


def test_a_process_that_has_ended_is_started_again(renderer: Renderer) -> None:
    child, descriptors = renderer._started(), psutil.Process().num_fds()
    os.kill(child.pid, signal.SIGKILL)
    psutil.Process(child.pid).wait(20)
    assert renderer.render("{{ messages[0].content }}", {}, HI) == "hi"
    assert psutil.Process().num_fds() == descriptors


def test_a_process_that_ends_meanwhile_is_reported(renderer: Renderer) -> None:
    child = psutil.Process(renderer._started().pid)
    rest_s = child.cpu_times().user + 0.1
    with once(lambda: child.cpu_times().user > rest_s, child.kill):  # it is at work
        assert "ends its process (SIGKILL)" in complaint(renderer, LOOPS)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no signal stops a process there")
def test_time_in_which_other_programs_have_the_processors_does_not_count(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert renderer.render("{{ messages[0].content }}", {}, HI) == "hi"  # it has started
    monkeypatch.setattr(rendering, "_SECONDS", 1.0)
    pid = renderer._started().pid
    os.kill(pid, signal.SIGSTOP)
    goes_on = threading.Timer(1.2, os.kill, (pid, signal.SIGCONT))
    goes_on.start()
    assert renderer.render("{{ messages[0].content }}", {}, HI) == "hi"
    goes_on.join()


def test_any_thread_may_ask(renderer: Renderer) -> None:
    heard: list[str | LocalSpecError] = []

    def ask(word: str, template: str) -> None:
        try:
            heard.append(renderer.render(template, {"word": word}, HI))
        except ModelFileError as error:
            heard.append(error)

    threads = [threading.Thread(target=ask, args=(str(number), "{{ word }}")) for number in range(20)]
    threads.append(threading.Thread(target=ask, args=("", "{{ 'x' * 3000000000 }}")))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(word for word in heard if isinstance(word, str)) == sorted(map(str, range(20)))
    assert len(heard) == len(threads)


@pytest.mark.slow
def test_it_does_not_outlive_a_program_that_is_killed() -> None:
    code = f"""
from localspec.llama.rendering import renderer
renderer.render("", {{}}, [])
print(renderer._started().pid, flush=True)
renderer.render({LOOPS!r}, {{}}, [])
"""
    with start_script(code, "none") as script:
        assert script.stdout is not None
        pid = int(script.stdout.readline())
        script.kill()
    assert ends(pid)
