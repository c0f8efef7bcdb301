from __future__ import annotations

import os
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from gguf import GGUFValueType
from gguf.gguf_writer import GGUFValue

from localspec import gguf
from localspec.errors import ModelFileError
from localspec.models.shape import read_shape, shape_of_parts
from tests.llama import tiny
from tests.models.test_gguf import ranges_of


def piece(data: bytes, start: int, count: int) -> bytes:
    return data[start : start + count]


def part(folder: Path, number: int, count: int = 2) -> Path:
    recipe = tiny.Recipe(folder / f"m-{number + 1:05d}-of-{count:05d}.gguf", "llama")
    recipe.writer.add_uint16("split.no", number)
    recipe.writer.add_uint16("split.count", count)
    if number == 0:
        recipe.vocabulary()
        tiny._shape(recipe)
        recipe.matrix("token_embd", 264, tiny.WIDTH)
    recipe.matrix(f"blk.{number}.attn_q", 64, 64)
    return recipe.write()


def test_split_files_are_summed(tmp_path: Path) -> None:
    paths = [part(tmp_path, 0), part(tmp_path, 1)]
    shape = read_shape(paths[0])
    assert [layer.weight_bytes for layer in shape.layers] == [4 * 64 * 64] * 2
    assert shape.file_bytes == sum(path.stat().st_size for path in paths)
    remote = [(ranges_of(path), path.stat().st_size) for path in paths]
    assert shape_of_parts(remote, "far").layers == shape.layers
    with pytest.raises(ModelFileError, match="far has 2 parts, not 1"):
        shape_of_parts(remote[:1], "far")
    with pytest.raises(ModelFileError, match="part 2 of far is in the place of part 1"):
        shape_of_parts(remote[::-1], "far")


def test_a_missing_part(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf"):
        read_shape(part(tmp_path, 0))


def test_a_count_of_parts_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="claims 65,000 parts"):
        read_shape(part(tmp_path, 0, 65_000))


def with_value(path: Path, key: str, value: object, kind: GGUFValueType) -> Path:
    """A tiny model whose header says something else."""

    def change(recipe: tiny.Recipe) -> None:
        inner = GGUFValueType.INT32 if kind == GGUFValueType.ARRAY else None
        recipe.writer.kv_data[0][key] = GGUFValue(value, kind, inner)

    return tiny.llama(path, adjust=change)


@pytest.mark.parametrize(
    ("key", "value", "kind", "words"),
    [
        ("llama.block_count", 2**31, GGUFValueType.UINT32, "block_count"),
        ("llama.block_count", 0, GGUFValueType.UINT32, "block_count"),
        ("llama.nextn_predict_layers", 5, GGUFValueType.UINT32, "block_count"),
        ("llama.attention.key_length", -8, GGUFValueType.INT32, "less than 0"),
        ("llama.attention.head_count_kv", [-1, -1], GGUFValueType.ARRAY, "less than 0"),
        ("llama.embedding_length", -8, GGUFValueType.INT32, "embedding_length"),
        ("llama.context_length", -8, GGUFValueType.INT32, "context_length"),
    ],
)
def test_numbers_that_cannot_be(
    tmp_path: Path, key: str, value: object, kind: GGUFValueType, words: str
) -> None:
    path = with_value(tmp_path / "a.gguf", key, value, kind)
    with pytest.raises(ModelFileError, match=words) as refused:
        read_shape(path)
    assert str(path) in refused.value.message


@pytest.mark.parametrize(("used", "experts"), [(100, 4), (5, 4), (0, 4), (2, 0)])
def test_more_experts_in_use_than_there_are(tmp_path: Path, used: int, experts: int) -> None:
    path = tiny.mixture(tmp_path / "a.gguf", experts=experts, used=used)
    with pytest.raises(ModelFileError, match=f"a.gguf has .* {used} of {experts} experts are in use"):
        read_shape(path)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "many", True])
def test_values_of_the_wrong_kind_count_as_none(tmp_path: Path, value: object) -> None:
    kinds = {float: GGUFValueType.FLOAT64, str: GGUFValueType.STRING, bool: GGUFValueType.BOOL}
    path = with_value(tmp_path / "a.gguf", "llama.attention.value_length", value, kinds[type(value)])
    assert all(layer.value_values < 100 for layer in read_shape(path).layers)


def test_no_table_of_tokens(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no token_embd\.weight"):
        read_shape(tiny.Recipe(tmp_path / "a.gguf", "clip").write())


def test_a_flipped_byte_never_crashes(tmp_path: Path) -> None:
    whole = tiny.llama(tmp_path / "a.gguf").read_bytes()
    refused = 0
    for position in range(8, 700):
        broken = bytearray(whole)
        broken[position] ^= 0xFF
        try:
            shape_of_parts(((partial(piece, bytes(broken)), len(whole)),), "far")
        except ModelFileError:
            refused += 1
    assert refused > 50


def test_cut_ranges(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "a.gguf")
    whole = path.read_bytes()
    for length in (0, 4, 30, 2000):
        cut = whole[:length]
        with pytest.raises(ModelFileError):
            shape_of_parts(((partial(piece, cut), len(whole)),), "far")


def test_a_source_that_sends_nothing_more_ends() -> None:
    endless = b"GGUF" + struct.pack("<IQQ", 3, 1, 1000)
    with pytest.raises(ModelFileError, match="ends inside its header"):
        shape_of_parts(((partial(piece, endless), 2**50),), "far")


def text(of: bytes) -> bytes:
    return struct.pack("<Q", len(of)) + of


def list_of(kind: int, count: int) -> bytes:
    return text(b"k") + struct.pack("<IIQ", GGUFValueType.ARRAY, kind, count)


BROKEN, CUT_OFF = "broken GGUF header", "ends inside its header"


@pytest.mark.parametrize(
    ("tensors", "keys", "rest", "size", "told"),
    [
        (0, 2**24, b"", 2**36, BROKEN),
        (2**24, 0, b"", 2**36, BROKEN),
        (0, 40_000, b"", 400_000, CUT_OFF),
        (40_000, 0, b"", 900_000, CUT_OFF),
        (0, 1, text(b"k") + struct.pack("<IQ", GGUFValueType.STRING, 2**35), 2**36, BROKEN),
        (0, 1, text(b"k") + struct.pack("<IQ", GGUFValueType.STRING, 4096), 4096, CUT_OFF),
        (0, 1, list_of(GGUFValueType.UINT8, 2**35), 2**36, BROKEN),
        (0, 1, list_of(GGUFValueType.UINT64, 2**35), 2**36, CUT_OFF),
        (0, 1, list_of(GGUFValueType.STRING, 2**30), 2**36, BROKEN),
        (0, 1, list_of(GGUFValueType.STRING, 2**30), 2**32, CUT_OFF),
        (0, 1, list_of(GGUFValueType.STRING, 9) + struct.pack("<Q", 2**35), 2**36, BROKEN),
    ],
)
def test_a_header_that_claims_to_be_endless_is_rejected_by_what_it_claims(
    tensors: int, keys: int, rest: bytes, size: int, told: str, tmp_path: Path
) -> None:
    start, asked = b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest, []

    def zeros(at: int, count: int) -> bytes:
        asked.append(count)
        return start[at : at + count].ljust(count, b"\0")

    with pytest.raises(ModelFileError, match=told):
        gguf.header_of(zeros, size, tmp_path / "a.gguf")
    assert sum(asked) <= 1 << 20


def test_a_header_that_continues_and_on_is_read_so_far_and_no_further(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start, asked = b"GGUF" + struct.pack("<IQQ", 3, 0, 20_000), []

    def zeros(at: int, count: int) -> bytes:
        asked.append(count)
        return start[at : at + count].ljust(count, b"\0")

    monkeypatch.setattr(gguf, "_FIRST_READ", 1000)
    monkeypatch.setattr(gguf, "_MAX_HEADER", 270_000)
    gguf.header_of(zeros, 2**36, tmp_path / "a.gguf")
    assert sum(asked) <= 270_000
    monkeypatch.setattr(gguf, "_MAX_HEADER", 200_000)
    with pytest.raises(ModelFileError, match=BROKEN):
        gguf.header_of(zeros, 2**36, tmp_path / "a.gguf")


@pytest.mark.parametrize("first", [23, 100, 3001])
def test_a_header_is_the_same_in_whatever_pieces_it_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: int
) -> None:
    path = tiny.llama(tmp_path / "a.gguf", extra=2000)
    whole, size = gguf.read_header(path), path.stat().st_size
    monkeypatch.setattr(gguf, "_FIRST_READ", first)
    monkeypatch.setattr(gguf, "_GROWTH", 1)
    asked: list[tuple[int, int]] = []
    assert gguf.header_of(ranges_of(path, asked), size, path) == whole
    assert all(at == sum(count for _, count in asked[:number]) for number, (at, _) in enumerate(asked))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)  # the client that reads from it finds something
    try:
        os.write(held, b"GGUF\x03\0\0\0".ljust(512, b"\0"))
        with pytest.raises(ModelFileError, match="is a pipe or a device"):
            read_shape(path)
    finally:
        os.close(held)


def test_a_list_of_heads_without_heads(tmp_path: Path) -> None:
    path = with_value(tmp_path / "a.gguf", "llama.attention.head_count", [7], GGUFValueType.ARRAY)
    seven = struct.pack("<IQi", GGUFValueType.INT32, 1, 7)
    data = path.read_bytes()
    assert data.count(seven) == 1
    path.write_bytes(data.replace(seven, seven[:4] + bytes(8)) + bytes(64))
    assert len(read_shape(path).layers) == tiny.LAYERS


def test_a_folder_called_like_a_model_far_away_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.llama(tmp_path / "a.gguf")
    (tmp_path / "someone" / "model-GGUF").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert shape_of_parts(((ranges_of(path), path.stat().st_size),), "someone/model-GGUF").layers


def test_a_link_to_nowhere_is_not_a_misspelt_path(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to("gone")
    with pytest.raises(ModelFileError, match="links to a file that is gone"):
        read_shape(tmp_path / "a.gguf")


CUT = """
import os, sys
from pathlib import Path
from localspec import gguf
from localspec import gguf
from localspec.errors import ModelFileError

path, {name} = Path(sys.argv[1]), gguf.{name}

def cut_first(*arguments):
    os.truncate(path, 600)
    return {name}(*arguments)

header = gguf.read_header(path) if "{name}" == "read_tokens" else None
gguf.{name} = cut_first
try:
    print(len(gguf.read_tokens(header)) if header else gguf.read_header(path).architecture)
except ModelFileError as error:
    print(error.message)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot get shorter there")
@pytest.mark.parametrize(
    ("at", "told"), [("parse", "llama"), ("check_magic", "llama"), ("read_tokens", "ends inside its header")]
)
def test_a_file_that_gets_shorter_while_it_is_read_ends_nothing(tmp_path: Path, at: str, told: str) -> None:
    path = tiny.llama(tmp_path / "a.gguf", extra=2000)  # a header of several pages
    done = subprocess.run(
        [sys.executable, "-c", CUT.format(name=at), path],
        capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert told in done.stdout


def test_a_file_that_gets_shorter_between_two_reads_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny.llama(tmp_path / "a.gguf").read_bytes()

    def read(start: int, count: int) -> bytes:
        return whole[start : min(start + count, 3000)]

    monkeypatch.setattr(gguf, "_FIRST_READ", 1000)
    with pytest.raises(ModelFileError, match="ends inside its header"):
        gguf.header_of(read, len(whole), tmp_path / "a.gguf")
