"""The names of models: user/repo:quant, addresses of the Hub, and file names in repositories."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote, urlsplit

from localspec.errors import UnavailableError, UserError
from localspec.gguf import FileKind, part_name
from localspec.storage.paths import expanded

HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
USUAL_QUANTS = ("Q4_K_M", "Q8_0")  # taken where none is named, as in llama.cpp
_FORM = "USER/REPO, with a quant where it matters: USER/REPO:Q4_K_M"
_PART = r"[A-Za-z0-9_]+(?:[.-]+[A-Za-z0-9_]+)*"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([\w./-]+?))?(?::((?:[\w.-]+/)*[\w.-]+))?", re.ASCII)
_FILE = re.compile(rf"({_PART}/{_PART})(?:@([^/]+))?/(.+\.gguf)", re.ASCII | re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16|FP32))"
    r"(?=$|[-._/])",
    re.IGNORECASE,
)
_COMPANION = re.compile(
    r"(?P<projector>mmproj)|(?P<imatrix>imatrix)|(?P<head>(?:mtp|eagle3|dflash|dspark)(?![a-z0-9]))"
)
_LABEL = re.compile(r"[\w.-]+", re.ASCII)
_LATEST = "latest"  # Ollama's tag for the one that is meant where none is named


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a model on the Hub: a repository, and its quant or file; None leaves it open."""

    repository: str
    quant: str | None = None  # or another tag: a file's name, its end, or a folder before one of them
    file: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        """Return the name as users write it."""
        at = f"@{self.revision}" if self.revision else ""
        if self.file is not None:
            return f"{self.repository}{at}/{self.file}"
        return f"{self.repository}{at}:{self.quant}" if self.quant else f"{self.repository}{at}"


def looks_like_reference(text: str) -> bool:
    """Return whether a text can be the name of a model on the Hub."""
    return any(form.fullmatch(text) for form in (_NAME, _FILE)) or _address(text) is not None


def parse(text: str) -> Reference:
    """Read `USER/REPO[:QUANT]`, `USER/REPO/FILE.gguf` or an address of the Hub; raises UserError."""
    text = text.strip()
    steps = _address(text)
    if steps is not None:
        return _of_address(text, steps)
    if found := _FILE.fullmatch(text):
        repository, revision, file = found.groups()
        return Reference(repository, file=file, revision=revision)
    found = _NAME.fullmatch(text)
    if found is None:
        raise UserError(f"`{text}` does not name a model on Hugging Face", f"write it as {_FORM}")
    repository, revision, quant = found.groups()
    return Reference(repository, quant=_tag(quant), revision=revision)


def _tag(text: str | None) -> str | None:
    return None if not text or text.lower() == _LATEST else text


def kind_by_name(name: str) -> FileKind:
    """Return the kind of a file by the first word of its name, as in llama.cpp's own files."""
    found = _COMPANION.match(name.rpartition("/")[2].lower())
    if found is None:
        return "model"
    return "draft head" if found["head"] else "imatrix" if found["imatrix"] else "projector"


def needs_header(name: str) -> bool:
    """Return whether a name is ambiguous: a companion's word is in the middle of it."""
    return kind_by_name(name) == "model" and _COMPANION.search(name.rpartition("/")[2].lower()) is not None


def is_model_file(name: str) -> bool:
    """Return whether a file is a model by its name: not a projector, a draft head or statistics."""
    return name.lower().endswith(".gguf") and kind_by_name(name) == "model"


def stem_of(name: str) -> str:
    """Return the name of a file, or of all files of a split model, without its ending."""
    part = part_name(name)
    if part is not None:
        return part.prefix
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def quant_of(name: str) -> str:
    """Return the quant in the name of a file (or of its folder); empty without one."""
    found = _QUANT.findall(stem_of(name))
    return str(found[-1]).upper() if found else ""


def label_of(name: str, repository: str) -> str:
    """Return the label of a file beyond the repository's name: Q4_K_M of Tiny-Q4_K_M in someone/Tiny-GGUF.

    Both begin with the same word, and the label follows the last word of the repository's. Empty for any
    other name.
    """
    stem = stem_of(name).rpartition("/")[2]
    title = re.sub("[-_.]GGUF$", "", repository.partition("/")[2], flags=re.IGNORECASE)
    words, of_title = [re.split("[-_.]", text.lower()) for text in (stem, title)]
    if words[0] != of_title[0] or of_title[-1] not in words:
        return ""
    count = words.index(of_title[-1]) + 1
    label = stem[len("-".join(words[:count])) + 1 :]
    return label if _LABEL.fullmatch(label) else ""


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
            "download the model again, or use another quant",
        )
    return tuple(parts[number] for number in sorted(parts))


def files_among(names: Iterable[str], *, headless: bool = False) -> tuple[str, ...]:
    """Return the first file of each model or companion of a model among some files, folders last.

    `headless` also returns a file of models whose first file is missing.
    """
    firsts: dict[object, str] = {}
    for name in sorted(names):
        part = part_name(name)
        if part is None or part.number == 1 or headless:
            firsts.setdefault((part.prefix, part.count) if part else name, name)
    return tuple(sorted(firsts.values(), key=lambda name: (name.count("/"), name.lower())))


def models_among(names: Iterable[str]) -> tuple[str, ...]:
    """Return the models among the files of a repository, by their names: the first file of each."""
    return files_among(filter(is_model_file, names))


def choose(
    reference: Reference, names: Sequence[str], kind_of: Callable[[str], FileKind] = kind_by_name
) -> tuple[str, ...]:
    """Return the files of a repository that match a reference, a model's own before those of a draft head.

    `kind_of` is called only for candidates. Raises UserError with a list of the files, or of the matches if
    there are several.
    """
    if reference.file is not None:
        return all_parts(_named(reference, reference.file, names), names)
    files = files_among(name for name in names if name.lower().endswith(".gguf"))
    models = [name for name in files if kind_by_name(name) == "model"]
    models = models or [name for name in files if kind_by_name(name) == "draft head"]
    if reference.quant is None:
        groups = usual(models)
    else:
        groups = [*fitting(reference, models), *variants(reference, models)]
    found = of_best_kind(groups, kind_of)
    if not found:
        raise _nothing_fits(reference, models)
    if len(found) > 1:
        raise ambiguous(reference, [f"{reference.repository}/{name}" for name in found])
    return all_parts(found[0], names)


def fitting(reference: Reference, names: Iterable[str]) -> list[list[str]]:
    """Return the names that the tag of a reference fits, in groups, the surest first.

    It is a file's name, its quant, more of its end than the quant, what it says beyond the repository's name,
    or its folder.
    """
    names, tag = _below(reference, names)
    stem = stem_of(tag.lower())
    quant = tag.upper()
    tells_more = quant_of(tag) not in ("", quant)
    tests: tuple[Callable[[str], bool], ...] = (
        lambda name: stem in (found := stem_of(name).lower(), found.rpartition("/")[2]),
        lambda name: quant_of(name) == quant,
        lambda name: tells_more and _ends_with(stem_of(name), tag),
        lambda name: label_of(name, reference.repository).upper() == quant,
        lambda name: f"/{name.lower()}".rpartition("/")[0].endswith(f"/{tag.lower()}"),
    )
    return [[name for name in names if test(name)] for test in tests]


def variants(reference: Reference, names: Iterable[str]) -> list[list[str]]:
    """Return the names of Unsloth's variant of the quant, used in place of it."""
    names, tag = _below(reference, names)
    return [[name for name in names if quant_of(name) == f"UD-{tag.upper()}"]]


def _below(reference: Reference, names: Iterable[str]) -> tuple[list[str], str]:
    """Return the names in the folder that a tag begins with, and the rest of it."""
    folder, slash, tag = (reference.quant or "").rpartition("/")
    end = f"/{folder.lower()}{slash}"
    return [name for name in names if f"/{name[: name.rfind('/') + 1].lower()}".endswith(end)], tag


def usual(names: Iterable[str]) -> list[list[str]]:
    """Return names grouped by quant, common quants first."""
    groups: dict[str, list[str]] = {quant: [] for quant in USUAL_QUANTS}
    for name in names:
        groups.setdefault(quant_of(name), []).append(name)
    return [*groups.values()]


def of_best_kind(groups: Iterable[Sequence[str]], kind_of: Callable[[str], FileKind]) -> list[str]:
    """Return the models of the first group that has any; where none has, the draft heads."""
    groups = tuple(groups)
    for kind in ("model", "draft head"):
        for group in groups:
            if found := [name for name in group if kind_of(name) == kind]:
                return found
    return []


def ambiguous(reference: Reference, names: Sequence[str]) -> UserError:
    """Return the error for a reference that fits several models, of these names."""
    return UserError(f"{reference} fits {len(names)} models: {_listed(names)}", "name one of them in full")


def file_named(text: str) -> Path | None:
    """Return the file that a text means: what is there, or ends in .gguf; None for any other name.

    A file that is not there may be one of a repository: USER/REPO/FILE.gguf.
    """
    path = expanded(text)
    try:
        is_there = path.exists()
    except OSError:  # too long, or in a closed folder
        is_there = False
    is_name = path.suffix.lower() != ".gguf" or _FILE.fullmatch(text) is not None
    return path if is_there or not is_name else None


def close_names(name: str, choices: Iterable[str]) -> str:
    """Return `did you mean ...?`, or nothing where no choice comes near."""
    choices = {choice.lower(): choice for choice in choices}
    close = get_close_matches(name.lower(), choices, n=1, cutoff=0.6)
    return f"did you mean {choices[close[0]]}?" if close else ""


def _address(text: str) -> list[str] | None:
    """Return the path segments if a text is an address of the Hub."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        host, slash, path = text.partition("/")
        return [unquote(step) for step in path.split("/")] if slash and host.lower() in HUB_HOSTS else None
    if scheme == "hf":
        return [step for step in rest.split("/") if step]
    try:
        parts = urlsplit(text)
    except ValueError:  # invalid brackets
        return None
    if scheme not in ("http", "https") or parts.hostname not in HUB_HOSTS:
        return None
    return [unquote(step) for step in parts.path.split("/") if step]


def _of_address(text: str, steps: list[str]) -> Reference:
    name, colon, tag = "/".join(steps[1:]).partition(":")
    if colon and "/" not in name:  # a tag may begin with a folder
        return Reference(_checked(f"{steps[0]}/{name}", text), _tag(tag))
    repository = _checked("/".join(steps[:2]), text)
    rest = steps[2:]
    if rest and rest[0] in ("tree", "blob", "resolve", "raw"):
        revision = rest[1] if len(rest) > 1 else None
        rest = rest[2:]
    else:
        revision = None
    file = "/".join(rest) or None
    if file is not None and not file.lower().endswith(".gguf"):
        raise UserError(f"`{text}` is not a GGUF file", "name the repository alone, or a .gguf file in it")
    return Reference(repository, None, file, None if revision == "main" else revision)


def _checked(repository: str, text: str) -> str:
    if re.fullmatch(f"{_PART}/{_PART}", repository, re.ASCII) is None:
        raise UserError(f"`{text}` does not name a model on Hugging Face", f"write it as {_FORM}")
    return repository


def _named(reference: Reference, file: str, names: Sequence[str]) -> str:
    found = with_name(file, names)
    if len(found) > 1:
        raise ambiguous(reference, [f"{reference.repository}/{name}" for name in found])
    if found:
        return found[0]
    models = models_among(names)
    hint = close_names(file, models) or f"there are: {_listed(models)}"
    raise UnavailableError(f"{reference.repository} has no file {file}", hint)


def with_name(file: str, names: Iterable[str]) -> list[str]:
    """Return the names of a repository's files that a path in it, or a file's name alone, means."""
    names = tuple(names)
    wanted = file.lower()
    tests: tuple[Callable[[str], bool], ...] = (
        lambda name: name == file,
        lambda name: name.lower() == wanted,
        lambda name: name.rpartition("/")[2].lower() == wanted,
    )
    return next(filter(None, ([name for name in names if test(name)] for test in tests)), [])


def _ends_with(stem: str, words: str) -> bool:
    return re.search(rf"(^|[-._/]){re.escape(words)}$", stem, re.IGNORECASE) is not None


def _nothing_fits(reference: Reference, models: Sequence[str]) -> UserError:
    if not models or reference.quant is None:
        return UnavailableError(
            f"{reference.repository} has no GGUF model",
            "look for a repository of the same model with GGUF in its name",
        )
    existing = dict.fromkeys(
        quant_of(name) or label_of(name, reference.repository) or name for name in models
    )
    close = close_names(reference.quant, existing)
    hint = f"there are: {_listed(tuple(existing))}"
    wrong = f"{reference.repository} has no quant {reference.quant}" + (f"; {close}" if close else "")
    return UnavailableError(wrong, hint)


def _listed(names: Sequence[str], most: int = 24) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
