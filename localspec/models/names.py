"""The names of models: user/repo:quant, addresses of the hub, and what a repository calls its files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote, urlsplit

from localspec.errors import UnavailableError, UserError
from localspec.gguf import part_name
from localspec.storage.paths import expanded

HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
USUAL_QUANTS = ("Q4_K_M", "Q8_0")  # taken where none is named, as in llama.cpp
_FORM = "USER/REPO, with a quant where it matters: USER/REPO:Q4_K_M"
_PART = r"[A-Za-z0-9_]+(?:[.-]+[A-Za-z0-9_]+)*"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([\w./-]+?))?(?::([\w.-]+))?", re.ASCII)
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16|FP32))"
    r"(?=$|[-._/])",
    re.IGNORECASE,
)
_NOT_A_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")  # companions of a model


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on the hub: a repository, and what of it is meant; None leaves the choice open."""

    repository: str
    quant: str | None = None
    file: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        """Return the name as people write it."""
        at = f"@{self.revision}" if self.revision else ""
        if self.file is not None:
            return f"{self.repository}{at}/{self.file}"
        return f"{self.repository}{at}:{self.quant}" if self.quant else f"{self.repository}{at}"


def looks_like_reference(text: str) -> bool:
    """Tell whether a text can be the name of a model on the hub."""
    return _NAME.fullmatch(text) is not None or _address(text) is not None


def parse(text: str) -> Reference:
    """Read `USER/REPO[:QUANT]`, `USER/REPO/FILE.gguf` or an address of the hub; raises UserError."""
    text = text.strip()
    steps = _address(text)
    if steps is not None:
        return _of_address(text, steps)
    if (
        text.lower().endswith(".gguf")
        and text.count("/") >= 2
        and not text.startswith(("/", "./", "../", "~"))
    ):
        user, repo, file = text.split("/", 2)
        repo, _, revision = repo.partition("@")
        return Reference(_checked(f"{user}/{repo}", text), file=file, revision=revision or None)
    found = _NAME.fullmatch(text)
    if found is None:
        raise UserError(f"`{text}` does not name a model on the hub", f"write it as {_FORM}")
    repository, revision, quant = found.groups()
    return Reference(repository, quant=quant, revision=revision)


def is_model_file(name: str) -> bool:
    """Tell whether a file is a model by its name: not a projector, a draft head or statistics."""
    base = name.rpartition("/")[2].lower()
    return base.endswith(".gguf") and not any(word in base for word in _NOT_A_MODEL)


def quant_of(name: str) -> str:
    """Return the quant that the name of a file (or of the folder around it) tells; empty where none does."""
    parts = part_name(name)
    stem = parts.prefix if parts else name.removesuffix(".gguf")
    found = _QUANT.findall(stem)
    return str(found[-1]).upper() if found else ""


def all_parts(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return every file of the model that `name` belongs to, in order; raises UserError if one is missing."""
    own = part_name(name)
    if own is None:
        return (name,)
    parts = {
        part.number: other
        for other in names
        if (part := part_name(other)) is not None and (part.prefix, part.count) == (own.prefix, own.count)
    }
    missing = [str(number) for number in range(1, own.count + 1) if number not in parts]
    if missing:
        raise UserError(
            f"{name} is one of {own.count} files, of which part {', '.join(missing)} is missing",
            "download the model again, or take another quant",
        )
    return tuple(parts[number] for number in sorted(parts))


def models_among(names: Iterable[str], *, headless: bool = False) -> tuple[str, ...]:
    """Return the models among the files of a repository: the first file of each, folders last.

    `headless` also returns a file of those whose first is missing.
    """
    firsts: dict[object, str] = {}
    for name in sorted(filter(is_model_file, names)):
        part = part_name(name)
        if part is None or part.number == 1 or headless:
            firsts.setdefault((part.prefix, part.count) if part else name, name)
    return tuple(sorted(firsts.values(), key=lambda name: (name.count("/"), name.lower())))


def choose(reference: Reference, names: Sequence[str]) -> tuple[str, ...]:
    """Return the files of a repository that a reference means; raises UserError listing what there is."""
    models = models_among(names)
    if reference.file is not None:
        return all_parts(_named(reference, reference.file, names), names)
    if not models:
        raise UnavailableError(
            f"{reference.repository} holds no GGUF model",
            "look for a repository of the same model with GGUF in its name",
        )
    if reference.quant is None:
        quants = {quant_of(name): name for name in reversed(models)}
        usual = next((quants[quant] for quant in USUAL_QUANTS if quant in quants), models[0])
        return all_parts(usual, names)
    fitting = of_quant(reference.quant, models)
    if not fitting:
        raise _no_such_quant(reference, reference.quant, models)
    return all_parts(fitting[0], names)


def of_quant(quant: str, names: Iterable[str], *, loosely: bool = True) -> list[str]:
    """Return the names that tell a quant; `loosely`, where none does, those that hold it as a word."""
    names = tuple(names)
    exact = [name for name in names if quant_of(name) == quant.upper()]
    return exact or [name for name in names if loosely and _has_word(name, quant)]


def file_named(text: str) -> Path | None:
    """Return the file that a text means: what is there, or ends in .gguf; None for any other name."""
    path = expanded(text)
    try:
        is_there = path.exists()
    except OSError:  # too long, or in a closed folder
        is_there = False
    return path if is_there or path.suffix.lower() == ".gguf" else None


def close_names(name: str, choices: Iterable[str]) -> str:
    """Return `did you mean ...?`, or nothing where no choice comes near."""
    choices = {choice.lower(): choice for choice in choices}
    close = get_close_matches(name.lower(), choices, n=1, cutoff=0.6)
    return f"did you mean {choices[close[0]]}?" if close else ""


def _address(text: str) -> list[str] | None:
    """Return the steps of the path where a text is an address of the hub."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        host, slash, path = text.partition("/")
        return [unquote(step) for step in path.split("/")] if slash and host.lower() in HUB_HOSTS else None
    if scheme == "hf":
        return [step for step in rest.split("/") if step]
    try:
        parts = urlsplit(text)
    except ValueError:  # brackets that are no address
        return None
    if scheme not in ("http", "https") or parts.hostname not in HUB_HOSTS:
        return None
    return [unquote(step) for step in parts.path.split("/") if step]


def _of_address(text: str, steps: list[str]) -> Reference:
    repository, _, quant = "/".join(steps[:2]).partition(":")
    repository, rest = _checked(repository, text), steps[2:]
    if rest and rest[0] in ("tree", "blob", "resolve", "raw"):
        revision, rest = (rest[1] if len(rest) > 1 else None), rest[2:]
    else:
        revision = None
    file = "/".join(rest) or None
    if file is not None and not file.lower().endswith(".gguf"):
        raise UserError(f"`{text}` is not a GGUF file", "name the repository alone, or a .gguf file in it")
    return Reference(repository, quant or None, file, None if revision == "main" else revision)


def _checked(repository: str, text: str) -> str:
    if re.fullmatch(f"{_PART}/{_PART}", repository, re.ASCII) is None:
        raise UserError(f"`{text}` does not name a model on the hub", f"write it as {_FORM}")
    return repository


def _named(reference: Reference, file: str, names: Sequence[str]) -> str:
    by_name = {name.rpartition("/")[2].lower(): name for name in reversed(names)}
    by_name |= {name.lower(): name for name in reversed(names)}
    if found := by_name.get(file.lower()):
        return found
    models = models_among(names)
    hint = close_names(file, models) or f"there are: {_listed(models)}"
    raise UnavailableError(f"{reference.repository} has no file {file}", hint)


def _has_word(name: str, word: str) -> bool:
    return re.search(rf"(^|[-._/]){re.escape(word)}([-._/]|$)", name, re.IGNORECASE) is not None


def _no_such_quant(reference: Reference, quant: str, models: Sequence[str]) -> UserError:
    existing = dict.fromkeys(quant_of(name) or name for name in models)
    close = close_names(quant, existing)
    hint = f"there are: {_listed(tuple(existing))}"
    wrong = f"{reference.repository} has no quant {quant}" + (f"; {close}" if close else "")
    return UnavailableError(wrong, hint)


def _listed(names: Sequence[str], most: int = 24) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
