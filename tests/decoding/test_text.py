import codecs
import random

import pytest

from localspec.decoding.text import AnswerText
from localspec.errors import UserError
from localspec.thinking_tags import LeadingThinking, tags_of
from localspec.types.drafts import Provenance
from localspec.types.events import TextPiece

TARGET, ACCEPTED, BONUS = Provenance.TARGET, Provenance.ACCEPTED, Provenance.BONUS


class ByteDetokenizer:
    """Tokens are numbers of byte strings."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        return self._decoder.decode(self._pieces[token])

    @property
    def has_pending(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def piece(self, token: int) -> bytes:
        return b"%d" % token


def answer(
    pieces: list[str | bytes], stop: tuple[str, ...] = (), thinking: LeadingThinking | None = None
) -> AnswerText:
    raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    return AnswerText(ByteDetokenizer(raw), stop, 0, thinking)


def text_of(pieces: tuple[TextPiece, ...]) -> str:
    return "".join(piece.text for piece in pieces)


def naive(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """Read character by character until one completes a stop string."""
    for end in range(1, len(text) + 1):
        found = [word for word in stop if text[:end].endswith(word)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def split(data: bytes, rng: random.Random) -> list[bytes]:
    pieces = []
    while data:
        size = rng.randint(1, 4)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def test_text_is_grouped_by_provenance() -> None:
    text = answer(["Once", " upon", " a", " time"])
    for token, provenance in enumerate((ACCEPTED, ACCEPTED, BONUS, TARGET)):
        assert not text.add(token, provenance)
    assert text.take() == (
        TextPiece("Once upon", ACCEPTED),
        TextPiece(" a", BONUS),
        TextPiece(" time", TARGET),
    )
    assert text.take() == ()
    assert text.finish() == ()


def test_text_without_stop_strings_is_never_held_back() -> None:
    text = answer(["a", "b"])
    text.add(0, TARGET)
    assert text_of(text.take()) == "a"


def test_a_possible_stop_string_waits_with_its_provenance() -> None:
    text = answer(["one\n", "\n", "two"], stop=("\n\nUser:",))
    text.add(0, ACCEPTED)
    text.add(1, BONUS)
    assert text.take() == (TextPiece("one", ACCEPTED),)
    text.add(2, TARGET)
    assert text.take() == (TextPiece("\n", ACCEPTED), TextPiece("\n", BONUS), TextPiece("two", TARGET))


def test_a_stop_string_across_tokens_ends_the_text_before_it() -> None:
    text = answer(["Hi", " <e", "n", "d> more", "later"], stop=("<end>", "STOP"))
    assert [text.add(token, ACCEPTED) for token in range(5)] == [False, False, False, True, True]
    assert text.stopped
    assert text_of(text.take()) == "Hi "
    assert text.finish() == ()


def test_an_unfinished_stop_string_is_text() -> None:
    text = answer(["Hi <e"], stop=("<end>",))
    text.add(0, ACCEPTED)
    assert text_of(text.take()) == "Hi "
    assert text.finish() == (TextPiece("<e", ACCEPTED),)
    assert not text.stopped


def test_the_stop_string_that_is_complete_first_counts() -> None:
    text = answer(["x abcd"], stop=("abcd", "bc"))
    assert text.add(0, TARGET)
    assert text_of(text.take()) == "x a"


def test_the_longest_of_those_complete_at_once_counts() -> None:
    text = answer(["xab"], stop=("b", "ab"))
    assert text.add(0, TARGET)
    assert text_of(text.take()) == "x"


def test_a_character_in_several_tokens_belongs_to_the_last() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    text = answer([first, second])
    text.add(0, ACCEPTED)
    assert text.take() == ()
    text.add(1, BONUS)
    assert text.take() == (TextPiece("é", BONUS),)


def test_an_unfinished_character_is_left_out() -> None:
    text = answer(["caf", "é".encode()[:1]])
    text.add(0, TARGET)
    text.add(1, TARGET)
    assert text_of(text.finish()) == "caf"


def test_a_stop_string_outside_ascii() -> None:
    text = answer([*(bytes([byte]) for byte in "ab→🙂c".encode())], stop=("→🙂",))
    stopped = [text.add(token, TARGET) for token in range(10)]
    assert stopped.index(True) == len("ab→🙂".encode()) - 1
    assert text_of(text.take()) == "ab"


def test_an_empty_stop_string_is_rejected() -> None:
    with pytest.raises(UserError, match="stop string is empty"):
        answer([], stop=("a", ""))


def test_any_split_gives_the_text_of_the_whole() -> None:
    rng = random.Random(4)
    stopped = 0
    for _ in range(2000):
        whole = "".join(rng.choice("aab→🙂") for _ in range(rng.randrange(30)))
        stop = tuple(
            "".join(rng.choice("ab→🙂") for _ in range(rng.randint(1, 6))) for _ in range(rng.randrange(4))
        )
        text = answer([*(pieces := split(whole.encode(), rng))], stop)
        shown, owners = "", []
        for token in range(len(pieces)):
            provenance = rng.choice(list(Provenance))
            owners.append(provenance)
            ended = text.add(token, provenance)
            if rng.random() < 0.5:
                shown += text_of(text.take())
                assert naive(whole, stop)[0].startswith(shown)
            if ended:
                break
        shown += text_of(text.finish())
        assert (shown, text.stopped) == naive(whole, stop)
        stopped += text.stopped
    assert 200 < stopped < 1800


def test_any_split_keeps_the_provenance_of_each_character() -> None:
    rng = random.Random(5)
    for _ in range(300):
        words = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 4))) for _ in range(12)]
        owners = [rng.choice([TARGET, ACCEPTED, BONUS]) for _ in words]
        text = answer([*words], stop=("abab", "bbb"))
        pieces: list[TextPiece] = []
        for token, owner in enumerate(owners):
            text.add(token, owner)
            pieces += text.take()
        pieces += text.finish()
        expected = [owner for word, owner in zip(words, owners, strict=True) for _ in word]
        shown = [piece.provenance for piece in pieces for _ in piece.text]
        assert shown == expected[: len(shown)]
        assert len(shown) == len(naive("".join(words), ("abab", "bbb"))[0])


@pytest.mark.parametrize(
    ("pieces", "known", "text"),
    [
        ((" a", " b"), 1, "a b"),
        ((" ", " ", " a"), 2, " a"),
        (("  a",), 1, " a"),
        (("a", " b"), 1, "a b"),
        (("\n", " b"), 1, "\n b"),
        ((" a",), 0, " a"),
    ],
)
def test_spaces_that_stand_before_the_answer_are_not_repeated(
    pieces: tuple[str, ...], known: int, text: str
) -> None:
    class Pieces:
        has_pending = False

        def feed(self, token: int) -> str:
            return pieces[token]

        def flush(self) -> str:
            return ""

        def piece(self, token: int) -> bytes:
            return b"%d" % token

    answer = AnswerText(Pieces(), ("never",), known)
    for token in range(len(pieces)):
        answer.add(token, Provenance.TARGET)
    assert "".join(piece.text for piece in answer.finish()) == text


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("hm. So.</think>It is. So. No.", "hm. So.</think>It is"),
        ("hm. So</think>\n\n. So. No", "hm. So</think>\n\n"),
        ("hm.\n\n</think>\n\nIt is\n\nso", "hm.\n\n</think>\n\nIt is"),
        (
            "h. So.</think> \n <think>m. So.</think>\n\n<thin. So",
            "h. So.</think> \n <think>m. So.</think>\n\n<thin",
        ),
        ("hm. So. No.\n\n", None),
        ("hm. So.</think>It is. S", None),
        ("hm</think>\n\n", None),
    ],
)
def test_stop_strings_count_after_the_thinking(written: str, said: str | None, opened: bool) -> None:
    stop, whole = (". So", "\n\n", "think>"), written if opened else f"\n<think>{written}"
    rng = random.Random(whole)
    for _ in range(40):
        pieces = split(whole.encode(), rng)
        text = answer(list(pieces), stop, LeadingThinking(tags_of("<think>") if opened else None))
        ends = [number for number in range(len(pieces)) if text.add(number, TARGET)]
        assert text_of(text.take()) + text_of(text.finish()) == whole[: len(whole) - len(written)] + (
            said or written
        )
        assert bool(ends) is text.stopped is (said is not None)


def test_thinking_comes_at_once_where_stop_strings_wait() -> None:
    text = answer(["h", "m ", "</think>", "So"], ("m </think>", "Soon"), LeadingThinking(tags_of("<think>")))
    told = []
    for token in range(4):
        text.add(token, TARGET)
        told.append(text_of(text.take()))
    assert told == ["h", "m ", "</think>", ""]
    assert text_of(text.finish()) == "So"


@pytest.mark.parametrize("stop", [(), ("x",)])
def test_the_tokens_of_the_thinking_are_counted(stop: tuple[str, ...]) -> None:
    def counted(pieces: list[str | bytes], thinking: LeadingThinking | None) -> list[int]:
        text = answer(pieces, stop, thinking)
        return [text.thinking_tokens for token in range(len(pieces)) if not text.add(token, TARGET)]

    opened = tags_of("[THINK]")
    assert counted(["h", "m", "[/TH", "INK]\n", "So", "."], LeadingThinking(opened)) == [1, 2, 3, 4, 4, 4]
    assert counted(["[TH", "INK]", "hm", "[/THINK]", "So"], LeadingThinking()) == [0, 2, 3, 4, 4]
    assert counted(["So", "[THINK]", "hm"], LeadingThinking()) == [0, 0, 0]
    assert counted(["[THINK]", "hm", "[/THINK]"], None) == [0, 0, 0]
