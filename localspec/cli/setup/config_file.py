"""Set the models in config.toml and leave everything else of it as it stands."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from localspec.errors import UserError
from localspec.storage.config import example, read_config
from localspec.storage.paths import PRIVATE_FILE, write_atomically

_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class ModelsTable:
    """What [models] is to say; no target is the default pair, a context of None stays as it is."""

    target: Path | None
    draft: Path | None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a configuration file that has not been written."""

    path: Path
    old: str
    new: str
    existed: bool

    @property
    def changes(self) -> bool:
        """Tell whether there is anything to write."""
        return not self.existed or self.old != self.new

    def diff(self) -> Iterable[str]:
        """Return the change as lines with + and - in front."""
        old, new = (text.splitlines() if text else [] for text in (self.old, self.new))
        name = str(self.path)
        return difflib.unified_diff(old, new, name if self.existed else "nothing", name, lineterm="", n=2)

    def write(self) -> None:
        """Write the file in one step; raises StoreError and leaves the old one if that fails."""
        mode = self.path.stat().st_mode & 0o777 if self.existed else PRIVATE_FILE
        write_atomically(self.path, self.new, mode)


def prepare(path: Path, wanted: ModelsTable) -> Edit:
    """Return how a file, or the example where there is none, would be changed; raises UserError."""
    if not path.exists():
        return Edit(path, "", edited(example(), wanted), existed=False)
    read_config(path)  # complains with the line, while nothing has been touched
    with path.open(encoding="utf-8", newline="") as file:
        old = file.read()
    return Edit(path, old, edited(old, wanted), existed=True)


def edited(text: str, wanted: ModelsTable) -> str:
    """Return the text of a configuration with other models; all other values and comments stay."""
    import tomlkit  # 30 ms
    from tomlkit.exceptions import TOMLKitError

    mark, body = (_MARK, text[1:]) if text.startswith(_MARK) else ("", text)
    try:
        document = tomlkit.parse(body)
        if "models" not in document:
            if wanted.target is None and not wanted.context:
                return text
            if body.strip():
                document.add(tomlkit.nl())
            document.add("models", tomlkit.table())
        models = cast("dict[str, object]", document["models"])
        for key, value in _values(wanted).items():
            if value is None:
                models.pop(key, None)
            elif models.get(key, 0) != value:
                models[key] = value
        result = tomlkit.dumps(document)
    except TOMLKitError as error:
        raise UserError(
            f"the configuration cannot be edited: {error}", "set [models] in it by hand"
        ) from None
    if "\r\n" in body:
        result = result.replace("\r\n", "\n").replace("\n", "\r\n")
    _check(body, result, wanted)
    return mark + result


def _values(wanted: ModelsTable) -> dict[str, str | int | None]:
    values: dict[str, str | int | None] = {
        "target": _text(wanted.target),
        "draft": _text(wanted.draft),
    }
    return values if wanted.context is None else values | {"context": wanted.context}


def _text(path: Path | None) -> str | None:
    text = None if path is None else str(path)
    if text is not None and not text.isprintable():
        raise UserError(
            f"config.toml cannot name {text!r}: it holds a character that does not print",
            "give the file or its folder another name",
        )
    return text


def _check(old: str, new: str, wanted: ModelsTable) -> None:
    """Make sure that the new text says what was wanted, and of everything else what the old one said."""
    before, after = (tomllib.loads(text.replace("\r\n", "\n")) for text in (old, new))
    models = {**before.pop("models", {}), **_values(wanted)}
    expected = {key: value for key, value in models.items() if value is not None}
    found = after.pop("models", {})
    if after != before or {"context": 0, **found} != {"context": 0, **expected}:
        raise UserError("the configuration is written in a way that cannot be edited safely",
                        "set [models] in it by hand")  # fmt: skip
