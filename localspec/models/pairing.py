"""May this draft model serve that target? Decided as llama.cpp does, from two headers or from open models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import PairingError
from localspec.gguf import TOKENS, Header, facts, read_model, read_tokens
from localspec.models.heads import kind_of_draft

if TYPE_CHECKING:
    from localspec.llama.vocabulary import Vocabulary

PADDING_ALLOWED = 128  # llama.cpp common/speculative.cpp, as are the tokens that are not compared
SMALL_RATIO = 4.0
"""A draft model with a smaller size ratio to its target is seldom worth it."""
_FIRST_COMPARED = 5


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first token that means something else to the draft model."""

    token: int
    target: str
    draft: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"token {self.token} is {self.target!r} in the target, {self.draft!r} in the draft"


@dataclass(frozen=True, slots=True)
class PairingVerdict:
    """Whether a draft model may serve a target, and why in a plain sentence."""

    fits: bool
    reason: str
    size_ratio: float  # parameters of the target over those of the draft
    difference: TokenDifference | None = None


@dataclass(frozen=True, slots=True)
class _VocabularyTraits:
    """The properties of a vocabulary that have to agree; its texts are compared last."""

    kind: str
    begin: str  # the token that is put there in every text, in words
    end: str  # likewise
    size: int
    texts: Callable[[], Sequence[bytes]]
    digest: str


def may_serve(target: Path, draft: Path) -> PairingVerdict:
    """Compare the vocabularies in two model files, or a head with its target.

    Raises ModelFileError if one of the files is broken.
    """
    one, other = map(read_model, (target, draft))
    ratio = one.parameters / max(1, other.parameters)
    try:
        if kind_of_draft(target, draft):
            return PairingVerdict(True, "a head that fits the target", ratio)
    except PairingError as error:
        return PairingVerdict(False, error.message, ratio)
    terms = _terms_of_file(one), _terms_of_file(other)
    found = _mismatch(*terms)
    difference = found if isinstance(found, TokenDifference) else None
    reason = str(found) if found else _agreement(terms[0].size, terms[1].size)
    return PairingVerdict(not found, reason, ratio, difference)


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> None:
    """Raise `PairingError` unless an open draft model's tokens mean its target's.

    Sizes may differ by some padding; then only the ids that both have can be drafted.
    """
    if reason := _mismatch(_terms_of_open(target), _terms_of_open(draft)):
        raise PairingError(str(reason), "choose a draft model of the target's own family")


def _mismatch(target: _VocabularyTraits, draft: _VocabularyTraits) -> str | TokenDifference | None:
    """Return the reason why two vocabularies differ; empty if they agree."""
    if target.kind != draft.kind:
        return f"the target's vocabulary is {target.kind}, the draft's is {draft.kind}"
    for what, one, other in (("begin", target.begin, draft.begin), ("end", target.end, draft.end)):
        if one != other:
            return f"the token at the {what} of a text differs: target {one}, draft {other}"
    if abs(target.size - draft.size) > PADDING_ALLOWED:
        return f"the target has {target.size:,} tokens, the draft {draft.size:,}"
    if target.digest and target.digest == draft.digest:  # reading both takes 0.1 s
        return None
    return first_difference(target.texts(), draft.texts())


def first_difference(target: Sequence[bytes], draft: Sequence[bytes]) -> TokenDifference | None:
    """Return the first token that two vocabularies spell differently; the first five may."""
    for token, (one, other) in enumerate(zip(target, draft, strict=False)):
        if token >= _FIRST_COMPARED and one != other and _text(one, token) != _text(other, token):
            shown = (_text(raw, token).decode("utf-8", "replace") for raw in (one, other))
            return TokenDifference(token, *shown)
    return None


def remark(ratio: float) -> str:
    """Return a warning about a size ratio; empty if it is good."""
    if ratio < 1:
        return "the draft is larger than its target: swap them"
    if ratio < SMALL_RATIO:
        return f"the draft is only {ratio:.1f} times smaller than its target: expect little"
    return ""


def _text(raw: bytes, token: int) -> bytes:
    """Return a token's text as llama.cpp sees it: up to the first zero byte, and never empty."""
    return raw.partition(b"\0")[0] or f"[EMPTY_{token}]".encode()


def _agreement(target: int, draft: int) -> str:
    if target == draft:
        return f"the same {target:,} tokens"
    more = abs(target - draft)
    what = "target" if target > draft else "draft"
    return f"the same {min(target, draft):,} tokens; {more} more of the {what} stay unused in drafts"


def _marker(token: int | None, *, added: bool) -> str:
    return f"token {token}" if added else "none"


def _terms_of_open(vocabulary: Vocabulary) -> _VocabularyTraits:
    return _VocabularyTraits(
        vocabulary.kind,
        _marker(vocabulary.bos, added=vocabulary.adds_bos),
        _marker(vocabulary.eos, added=vocabulary.adds_eos),
        vocabulary.size,
        lambda: vocabulary.texts,
        vocabulary.digest,
    )


def _terms_of_file(header: Header) -> _VocabularyTraits:
    model = header.text("tokenizer.ggml.model")
    pre = header.text("tokenizer.ggml.pre")
    unknown = (model or "missing", -1, -1, False, False)
    begins = facts()["begins"]
    kind, bos, eos, adds_bos, adds_eos = facts()["tokenizers"].get(model, unknown)
    always = model == "gemma4"
    if kind == "BPE":
        bos = -1 if pre in begins["unknown"] else bos
        adds_bos = adds_bos or pre in begins["added"]
        always = always or pre in begins["always"]
    adds_bos = _switch(header, "tokenizer.ggml.add_bos_token", adds_bos) or always
    adds_eos = _switch(header, "tokenizer.ggml.add_eos_token", adds_eos)
    return _VocabularyTraits(
        kind,
        _marker(_token(header, "tokenizer.ggml.bos_token_id", bos), added=adds_bos),
        _marker(_token(header, "tokenizer.ggml.eos_token_id", eos), added=adds_eos),
        header.counts.get(TOKENS, 0),
        partial(read_tokens, header),
        header.tokens_digest,
    )


def _token(header: Header, key: str, default: int) -> int | None:
    """Return a special token; one beyond the vocabulary counts as not given."""
    size = header.counts.get(TOKENS, 0)
    for token in (header.integer(key, -1), default):
        if 0 <= token < size:
            return token
    return None


def _switch(header: Header, key: str, default: bool) -> bool:
    value = header.values.get(key, default)
    return value if isinstance(value, bool) else default
