from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.chat.answer_settings import with_auto
from localspec.errors import UserError
from localspec.storage.config import Config, check_models, example, read_config
from localspec.storage.json_file import JsonFile
from localspec.storage.profiles import profiles, read_profile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def read(path: Path, text: str) -> Config:
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_without_a_file_everything_is_as_default(path: Path) -> None:
    assert read_config(path) == Config()
    assert read(path, "") == Config()


def test_new_chats_start_with_a_profile_that_is_shipped() -> None:
    assert Config().profile in {each.name for each in with_auto(profiles(Path("nowhere")))}


def test_every_field_is_read(path: Path, empty_home: Path) -> None:
    text = """
        theme = "nord"
        [models]
        target = "~/large.gguf"
        draft = "small.gguf"
        context = 4096
        cache_disk = "2 GiB"
        [chat]
        profile = "coding"
        sidebar = false
        ignore_circles = true
        [tuning]
        learn = true
        [attachments]
        max_kib = 64
        [tools]
        allow = ["read_file", "run_command:git status*", "time.*"]
        deny = ["*:.env"]
        steps = "on"
        private_hosts = ["wiki.lan", "127.0.0.1:8000"]
        [keys]
        "message.copy" = "c, ctrl+c"
        chat.search = ["f3", "ctrl+shift+k"]
        """
    assert read(path, text) == Config(
        theme="nord",
        keys=(("message.copy", "c,ctrl+c"), ("chat.search", "f3,ctrl+shift+k")),
        target=empty_home / "large.gguf",
        draft=path.parent / "small.gguf",
        context=4096,
        cache_disk=2 * 2**30,
        profile="coding",
        sidebar=False,
        ignore_circles=True,
        attachment_bytes=65536,
        tools_allowed=("read_file", "run_command:git status*", "time.*"),
        tools_denied=("*:.env",),
        tool_steps="on",
        private_hosts=("wiki.lan", "127.0.0.1:8000"),
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("them = 'x'", 1, "did you mean `theme`?"),
        ("theme = 1", 1, "has to be a text"),
        ("theme = 'x'\n[model]\n", 2, "did you mean `models`?"),
        ("[models]\ntraget = 'x'", 2, "did you mean `target`?"),
        ("[models]\ntarget = 1", 2, "has to be a text"),
        ("[models]\ntarget = '~nobody-of-that-name/x'", 2, "home folder of an unknown user"),
        ("[models]\n\ndraft = 'x'", 3, "there is no `target`"),
        ("[models]\ncontext = 63", 2, "use 0 or 64 and more"),
        ("[models]\ncontext = -1", 2, "0 to 16777216"),
        ("[chat]\nsidebar = 'yes'", 2, "true or false"),
        ("[chat]\nprofile = 'codin'", 2, "there is no profile `codin`; did you mean `coding`?"),
        ("[chat]\nprofiles = 'x'", 2, "did you mean `profile`?"),
        ("[tuning]\nlern = true", 2, "did you mean `learn`?"),
        ("[attachments]\nmax_kib = 0", 2, "1 to 65536"),
        ("[attachments]\nmax_kb = 1", 2, "did you mean `max_kib`?"),
        ("[tools]\nallow = 'read_file'", 2, "`allow` has to be a list"),
        ("[tools]\nallow = [\n'read_file',\n'run: ']", 4, "`run: ` is not a rule for tools; write the name"),
        ("[tools]\ndeny = ['']", 2, "`` is not a rule for tools"),
        ("[tools]\ndeny = ['git status']", 2, "`git status` is not a rule for tools"),
        ("[tools]\nalow = []", 2, "did you mean `allow`?"),
        ("[models]\ncache_disk = '10'", 2, "`cache_disk` is not a size: `10`; write it like"),
        ("theme = 'nrd'", 1, "there is no theme `nrd`; did you mean `nord`?"),
        ("[keys]\n'message.cpy' = 'c'", 2, "no key binding `message.cpy`; did you mean `message.copy`?"),
        ("[keys]\n'message.copy' = []", 2, "names no key"),
        ("[keys]\n'message.copy' = 'ctrl k'", 2, "`ctrl k` is not a key"),
        ("[keys]\n'message.copy' = ''", 2, "is not a key"),
        ("[keys]\n'message.copy' = 3", 2, "a text or a list of texts"),
        ("[keys]\nmessage.cpy = 'c'", 2, "did you mean `message.copy`?"),
        ("[keys]\nmessage = 'c'", 2, "no key binding `message`"),
        ("keys = 3", 1, "has to be a table"),
        ("theme = ", 1, "valid TOML"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        read(path, text)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["f2", "ctrl+k", "shift+tab", "ctrl+shift+left", "+", "ctrl++", "[", "?"])
def test_keys_that_there_are(path: Path, key: str) -> None:
    assert read(path, f"[keys]\n'message.copy' = ['{key}']").keys == (("message.copy", key),)


def test_the_example_says_what_goes_without_saying(path: Path) -> None:
    assert read(path, example()) == Config()


def test_what_the_example_only_hints_at_is_valid_too(path: Path) -> None:
    config = read(path, re.sub(r"^# (?=[\w.]+ = )", "", example(), flags=re.MULTILINE))
    assert config.target is not None
    assert config.draft is not None
    assert dict(config.keys) == {"message.copy": "c", "chat.search": "ctrl+k,f3"}


def test_name_that_no_key_has_is_rejected(path: Path) -> None:
    with pytest.raises(UserError, match=r"line 2: `ctrl\+pgup` is not a key; write keys like `pageup`"):
        read(path, "[keys]\n'message.copy' = ['ctrl+pgup']")
    keys = read(path, "[keys]\n'message.copy' = ['ctrl+pageup', 'ctrl++', 'é']").keys
    assert keys == (("message.copy", "ctrl+pageup,ctrl++,é"),)


def test_a_profile_of_ones_own_may_be_named(path: Path) -> None:
    (path.parent / "profiles").mkdir()
    (path.parent / "profiles" / "cooking.toml").touch()
    assert read(path, "[chat]\nprofile = 'cooking'").profile == "cooking"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "it is not a file but a folder, a pipe or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a file but a folder, a pipe or a device"),
        (Path.mkdir, "a directory|it is no file but a folder"),
        (_bind, "No such device or address|it is no file"),
        (lambda path: path.write_bytes(b"#" * 2**19), "it is larger than 256 KiB"),
    ],
    ids=["pipe", "device", "folder", "socket", "huge"],
)
@pytest.mark.timeout(20)
def test_what_is_not_a_file_to_read_is_rejected_at_once(
    path: Path, make: Callable[[Path], object], what: str
) -> None:
    make(path)
    with pytest.raises(UserError, match=rf"^cannot read .*config\.toml: .*({what})"):
        read_config(path)
    with pytest.raises(UserError, match=what):
        read_profile(path)
    assert JsonFile(path, Config, largest=1000).read() is None


@pytest.mark.timeout(20)
def test_a_mistake_below_a_long_text_is_found_at_once(path: Path) -> None:
    text = "\n".join(f"line {i}" for i in range(3000))
    with pytest.raises(UserError, match=r"line 3004: there is no key `thene`"):
        read(path, f'[chat]\nprofile = """\n{text}\n"""\nthene = 1')


def test_a_model_that_is_not_there_is_named_with_its_line(path: Path) -> None:
    config = read(path, "[models]\n\ntarget = '/nowhere/large.gguf'")
    with pytest.raises(UserError, match=r"config\.toml, line 3: `target` names no file: /nowhere/large"):
        check_models(path, config)


def test_a_file_that_no_one_may_look_at_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*: File name too long"):
        read_config(tmp_path / ("x" * 300))


def test_pairs_to_serve_have_names(path: Path, tmp_path: Path) -> None:
    (tmp_path / "large.gguf").touch()
    text = """
    [pairs]
    large = { target = "large.gguf", draft = "Qwen3:0.6b", context = 4096 }
    "a:b" = { embeddings = "large.gguf" }
    """
    large, vectors = read(path, text).pairs
    file = str(tmp_path / "large.gguf")
    assert (large.name, large.target, large.draft, large.context) == ("large", file, "Qwen3:0.6b", 4096)
    assert (vectors.name, vectors.embeddings, vectors.context) == ("a:b", file, None)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('a = { draft = "x" }', "line 2: `target` is missing from the table [pairs.a]"),
        ('a = { target = "x", traget = "x" }', "line 2: there is no key `traget`"),
        ('a = { target = "x", embeddings = "y" }', "line 2: there is no key `target`"),
        ('a = { target = "x", context = 3 }', "line 2: `context` of 3 is too small"),
        ('a = "x"', "line 2: `a` has to be a table: [pairs.a]"),
    ],
)
def test_a_pair_that_cannot_be_read_is_named_with_its_line(path: Path, line: str, complaint: str) -> None:
    with pytest.raises(UserError, match=re.escape(complaint)):
        read(path, f"[pairs]\n{line}\n")
