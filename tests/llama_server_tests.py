"""Runs llama-server's own tests against `localspec serve`, and prints what passed, failed and is not claimed.

    python tests/llama_server_tests.py FOLDER [--model FILE] [--model-draft FILE] [--embeddings FILE]
                                              [--rerank FILE] [--lora FILE]

FOLDER is `tools/server/tests` of llama.cpp, b11312. Their tests start a program with llama-server's flags:
this file, which starts `localspec serve` instead. It ends with NOT_CLAIMED for a flag that LocalSpec does not
have; such tests, and those that are listed below, are not claimed. `--model` replaces the models of the Hub:
the tests that expect a text of those fail then. Tests of drafts, embeddings and reranking need such models.
Those of the router get a cache of the Hub in which its models are copies of `--model`, or of the bundled one;
this file also waits as llama-server does for them. Slow tests, which download large models, are left out, as
they do themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn
from unittest.mock import patch
from xml.etree import ElementTree as ET

import pytest

from localspec.demo import bundled_pair

NOT_CLAIMED = 77
_LONGEST_REASON = 300  # characters
ROOT = Path(__file__).resolve().parent.parent
_OWN_MODEL = "LOCALSPEC_TESTS_MODEL"
_OWN_DRAFT = "LOCALSPEC_TESTS_DRAFT"
_OWN_EMBEDDINGS = "LOCALSPEC_TESTS_EMBEDDINGS"
_OWN_RERANKER = "LOCALSPEC_TESTS_RERANK"
_OWN_LORA = "LOCALSPEC_TESTS_LORA"
_THEIR_LORA = "moe_shakespeare15M.gguf"
_WAITS = "LLAMA_SERVER_DEBUG_FAKE_TIMING"  # two seconds before a model is opened, and before it answers
_WAIT_S = 2
_COMMIT = 40 * "0"
_ON_THE_HUB = {
    "ggml-org/tinygemma3-GGUF": "tinygemma3-Q8_0.gguf",
    "ggml-org/test-model-stories260K": "stories260K-f32.gguf",
    "ggml-org/test-model-stories260K-infill": "stories260K-infill-f32.gguf",
}
_OTHER_JOBS = {
    "test_vision_api.py": "images",
    "test_compat_gcp.py": "Vertex AI",
}
_OTHERWISE = {
    "test_mcp_proxy": "a proxy for the page",
    "test_mcp_proxy_custom_port": "a proxy for the page",
    "test_mcp_proxy_no_content": "a proxy for the page",
    "test_tools_builtin_file_glob_search_rejects_invalid_type": "it is refused in other words",
    "test_router_remote_preset": "presets of the Hub",
    "test_router_download_model": "downloads by clients",
    "test_router_delete_model": "deletions by clients",
    "test_slot_restore_legacy_token_list": "files in llama.cpp's own format",
    "test_slot_save_restore_with_image": "images",
    "test_slot_save_restore_with_two_images": "images",
    "test_slot_save_restore_with_image_across_restart": "images",
    "test_slot_save_restore_image_payload_larger_than_context": "images",
    "test_slot_restore_media_file_without_mmproj": "images",
    "test_cors_options[web.mydomain.fr-Access-Control-Allow-Headers-*]": "headers are named",
    "test_local_media_file": "images",
    "test_access_static_assets_without_api_key": "the page is one file",
    "test_server_models": "the models for clients are profiles",
    "test_server_model_aliases_and_tags": "the models for clients are profiles",
}
_ELSEWHERE = ("test_tools_builtin_runtime_header", "test_tools_builtin_docker_runtime")
_ALIKE = {
    "--port": "--port",
    "--host": "--host",
    "--temp": "--temp",
    "--seed": "-s",
    "--model": "-m",
    "--model-draft": "-md",
    "--hf-repo": "-hf",
    "--hf-file": "-hff",
    "--batch-size": "-b",
    "--ubatch-size": "-ub",
    "--threads": "-t",
    "--n-gpu-layers": "-ngl",
    "--n-predict": "-n",
    "--cache-ram": "-cram",
    "--api-key": "--api-key",
    "--slot-save-path": "--slot-save-path",
    "--lora": "--lora",
    "--lora-scaled": "--lora-scaled",
    "--chat-template": "--chat-template",
    "--chat-template-file": "--chat-template-file",
    "--pooling": "--pooling",
    "--spec-draft-n-max": "--draft-length",
    "--spec-type": "--spec-type",
    "-ctk": "-ctk",
    "-ctv": "-ctv",
    "-fa": "-fa",
    "--models-dir": "--models-dir",
    "--models-max": "--models-max",
    "--models-preset": "--models-preset",
    "--cors-origins": "--cors-origins",
    "--cors-methods": "--cors-methods",
    "--cors-headers": "--cors-headers",
}
_THEIR_PAGES = [
    "--cors-methods",
    "GET, POST, DELETE, OPTIONS",
    "--cors-credentials",
]  # unless they say otherwise

_WITHOUT_VALUE = {
    "--swa-full": "--swa-full",
    "--verbose": "-v",
    "--no-ui": "--no-ui",
    "--no-slots": "--no-slots",
    "--no-models-autoload": "--no-models-autoload",
}
_ALL_TOOLS = "all,edit_file,write_file,run_command"  # here those that change something have to be named
_ENCODERS = {
    "--embedding": ("--embeddings", _OWN_EMBEDDINGS),
    "--reranking": ("--rerank", _OWN_RERANKER),
}
_ALWAYS_SO = (
    "--offline",
    "--cont-batching",
    "--slots",
    "--kv-unified",
    "--jinja",
    "--no-jinja",
    "--no-mmproj",
    "--backend_sampling",
)
_NO_MATTER = ("--alias", "--spec-draft-n-min")  # with their value


def written(servers: str) -> str:
    """Write MCP servers into a file, and return its path."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        file.write(servers)
    return file.name


_OTHER_VALUES: Mapping[str, Callable[[str], list[str]]] = {
    "--reasoning": lambda value: ["--reasoning-budget", "0"] if value == "off" else [],
    "--sleep-idle-seconds": lambda seconds: ["--idle", f"{seconds}s"],
    "--tools": lambda names: ["--tools", names.replace("all", _ALL_TOOLS)],
    "--mcp-servers-config": lambda path: ["--mcp-config", path],
    "--mcp-servers-json": lambda servers: ["--mcp-config", written(servers)],
}


def flags_for(given: Sequence[str]) -> list[str] | None:
    """Return the flags of `localspec serve` for those of llama-server; None if one is not offered."""
    flags = list[str]()
    left = iter(given)
    slots = 1
    context = 0
    for flag in left:
        if flag in _WITHOUT_VALUE:
            flags.append(_WITHOUT_VALUE[flag])
        elif flag in _NO_MATTER:
            next(left)
        elif flag == "--parallel":
            slots = int(next(left))
            flags += ["-np", str(slots)]
        elif flag == "--ctx-size":
            context = int(next(left))
        elif flag not in (*_ALWAYS_SO, "--metrics"):
            known = _with_value(flag, next(left, ""))
            if known is None:
                return None
            flags += known
    if context:
        flags += ["-c", str(context // slots)]  # llama-server divides it among its slots
    if "--metrics" not in given:
        flags.append("--no-metrics")  # llama-server's default
    flags += _for_pages(given)
    return [*flags, "--models"] if is_router(flags) else flags


def _with_value(flag: str, value: str) -> list[str] | None:
    """Return the flags of `localspec serve` for one with a value; None if it is not offered."""
    if flag in _OTHER_VALUES:
        return _OTHER_VALUES[flag](value)
    return [_ALIKE[flag], value] if flag in _ALIKE else None


def is_router(flags: Sequence[str]) -> bool:
    """Return whether flags name no model, so that requests do."""
    return not {"-m", "-hf"} & {*flags}


def _for_pages(given: Sequence[str]) -> list[str]:
    """Return the flags for what llama-server lets pages do by default."""
    named = "--cors-origins" in given
    origins = [] if named else ["--cors-origins", "localhost" if "--tools" in given else "*"]
    return [*origins, *_THEIR_PAGES]


def with_model(flags: Sequence[str], model: str) -> list[str]:
    """Return flags with a model of one's own in place of those of the Hub."""
    left, kept = iter(flags), list[str]()
    for flag in left:
        if flag in ("-hf", "-hff"):
            next(left)
        else:
            kept.append(flag)
    return kept if "-m" in kept else [*kept, "-m", model]


def launch(given: Sequence[str]) -> NoReturn:
    """Become `localspec serve` in place of llama-server, or end if that is not claimed."""
    flags = flags_for([flag for flag in given if flag not in _ENCODERS])
    if flags is None:
        sys.exit(NOT_CLAIMED)
    if (model := os.environ.get(_OWN_MODEL)) and not is_router(flags):
        flags = with_model(flags, model)
    for asked, (flag, variable) in _ENCODERS.items():
        if asked in given:
            file = os.environ.get(variable) or sys.exit(NOT_CLAIMED)
            flags += [flag, file]
    program = ["-P", "-m", "localspec"]
    if "--models" in flags and _WAITS in os.environ:
        program = [__file__, "--waiting"]
    if "--tools" in flags:
        os.chdir("/")  # the workspace: theirs have none
    os.execv(sys.executable, [sys.executable, *program, "serve", *flags])


def serve_waiting(arguments: Sequence[str]) -> int:
    """Serve as `localspec` does, but wait before a model is opened and before it answers."""
    from localspec.cli.main import main as localspec
    from localspec.server import served

    opens = served._opened
    use = served.ServedModels.use

    def opened(
        model: served.ServedModel, prepared: served.PreparedModel, on_progress: served.OnProgress
    ) -> served.OpenedModel:
        time.sleep(_WAIT_S)
        return opens(model, prepared, on_progress)

    async def used(models: served.ServedModels, model: served.ServedModel) -> served.OpenedModel:
        found = await use(models, model)
        await asyncio.sleep(_WAIT_S)
        return found

    with patch.object(served, "_opened", opened), patch.object(served.ServedModels, "use", used):
        return localspec(arguments)


def fill_cache(folder: Path, model: Path) -> None:
    """Fill a cache of the Hub with copies of a model under the names of others."""
    for repository, file in _ON_THE_HUB.items():
        place = folder / f"models--{repository.replace('/', '--')}"
        for name in ("blobs", "refs", f"snapshots/{_COMMIT}"):
            (place / name).mkdir(parents=True)
        (place / "refs/main").write_text(_COMMIT, "utf-8")
        shutil.copy(model, place / "blobs" / file)
        (place / f"snapshots/{_COMMIT}" / file).symlink_to(f"../../blobs/{file}")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Prepare their modules: models are opened by the tests that use them alone, and wget is not needed."""
    sys.modules.setdefault("wget", ModuleType("wget"))
    sys.path.insert(0, str(Path.cwd()))
    import utils  # type: ignore[import-not-found]

    Path(utils.TMP_DIR).mkdir(exist_ok=True)  # of files that tests write
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.download_file = _own_file


def _own_file(url: str, *_path: str) -> str:
    """Return the draft model, or the LoRA adapter, in place of a download."""
    name = _OWN_LORA if url.endswith(_THEIR_LORA) else _OWN_DRAFT
    return os.environ.get(name) or pytest.skip("not claimed: a model of the Hub")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests of what LocalSpec is not for, or does otherwise on purpose."""
    for item in items:
        names = (item.name, getattr(item, "originalname", item.name))
        otherwise = next((_OTHERWISE[name] for name in names if name in _OTHERWISE), "")
        if job := _OTHER_JOBS.get(item.path.name) or otherwise:
            item.add_marker(pytest.mark.skip(reason=f"not claimed: {job}"))
        elif item.name.startswith(_ELSEWHERE):
            item.add_marker(
                pytest.mark.skip(reason="not claimed: tools that run in containers or through ssh")
            )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Report a test as skipped whose server was not started for a flag."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if call.excinfo is not None and f"return code {NOT_CLAIMED}" in str(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "not claimed: a flag")


def reasons(report: Path) -> str:
    """Return a line for each test that failed or is not claimed, with its reason."""
    lines = list[str]()
    for case in ET.parse(report).iter("testcase"):
        for kind in ("failure", "error", "skipped"):
            if (found := case.find(kind)) is not None:
                told = " ".join((found.get("message") or "").split())
                name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
                lines.append(f"{kind} {name}: {told[:_LONGEST_REASON]}")
    return "\n".join(lines)


def outcomes(report: Path) -> dict[str, Counter[str]]:
    """Return how many tests of each file passed, failed, or are not claimed."""
    found = defaultdict[str, Counter[str]](Counter)
    for case in ET.parse(report).iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        outcome = "failed" if failed else "not claimed" if skipped else "passed"
        found[case.get("classname", "").rpartition(".")[2]][outcome] += 1
    return found


def table(found: dict[str, Counter[str]]) -> str:
    """Return the outcomes as a table, with their sums."""
    columns = ("passed", "failed", "not claimed")
    rows = [*sorted(found.items()), ("all", sum(found.values(), Counter[str]()))]
    lines = [f"{'':32}" + "".join(f"{name:>13}" for name in columns)]
    lines += [f"{name:32}" + "".join(f"{counts[column]:13}" for column in columns) for name, counts in rows]
    return "\n".join(lines)


def main() -> int:
    """Run the tests of a folder; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="tools/server/tests of llama.cpp")
    parser.add_argument("--model", type=Path, help="GGUF file in place of the Hub's models")
    parser.add_argument("--model-draft", type=Path, help="GGUF file in place of the Hub's draft models")
    parser.add_argument("--embeddings", type=Path, help="GGUF file of an embedding model")
    parser.add_argument("--rerank", type=Path, help="GGUF file of a model for reranking")
    parser.add_argument("--lora", type=Path, help="GGUF file in place of the Hub's LoRA adapter")
    parser.add_argument("--reasons", action="store_true", help="say why tests failed or are not claimed")
    parser.add_argument("--only", default="", help="run only tests whose name matches, as in pytest -k")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        launcher, report = Path(folder, "llama-server"), Path(folder, "report.xml")
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" --launch "$@"\n', "utf-8")
        launcher.chmod(0o700)
        fill_cache(Path(folder, "hub"), args.model or bundled_pair()[0])
        path = os.pathsep.join(map(str, (ROOT / "tests", ROOT, ROOT / "tui")))
        environment = os.environ | {"PYTHONPATH": path, "LLAMA_SERVER_BIN_PATH": str(launcher)}
        environment["LLAMA_CACHE"] = str(Path(folder, "hub"))
        given = {_OWN_MODEL: args.model, _OWN_DRAFT: args.model_draft, _OWN_EMBEDDINGS: args.embeddings}
        given[_OWN_RERANKER] = args.rerank
        given[_OWN_LORA] = args.lora
        environment |= {name: str(file.resolve()) for name, file in given.items() if file is not None}
        command = [sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem, f"--junitxml={report}"]
        command += ["-p", "no:cacheprovider", "--timeout=120", "--tb=line", "-m", "not slow"]
        command += ["-k", args.only, "unit"]
        subprocess.run(command, cwd=args.folder, env=environment, check=False)
        if not report.exists():
            return 2
        found = outcomes(report)
        if args.reasons:
            sys.stdout.write(f"{reasons(report)}\n")
    sys.stdout.write(f"{table(found)}\n")
    return int(any(counts["failed"] for counts in found.values()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        launch(sys.argv[2:])
    if sys.argv[1:2] == ["--waiting"]:
        sys.exit(serve_waiting(sys.argv[2:]))
    sys.exit(main())
