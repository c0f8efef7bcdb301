"""The models that `serve --models` offers: presets, pairs of config.toml, and the models on disk."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app.offered import (
    ModelSources,
    Offered,
    OfferedEncoder,
    OfferedPair,
    in_folder,
    name_of_file,
    offered,
)
from localspec.app.opening import OnDisk, find_files
from localspec.chat.answer_settings import SessionRequest
from localspec.cli.shared.answer_request import reads_standard_input, session_request
from localspec.cli.shared.arguments import Parser, pair_request
from localspec.cli.shared.preset_file import Preset, Presets, read_presets
from localspec.errors import UserError
from localspec.models.pair_request import PairRequest
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir

if TYPE_CHECKING:
    from localspec.server.offers import PairSettings
    from localspec.server.served import OfferedModel
    from localspec.storage.profiles import Profile


@dataclass(frozen=True, slots=True)
class FirstPair:
    """The pair that goes before all others, and the file of its target."""

    request: PairRequest
    target: Path


@dataclass(frozen=True, slots=True)
class ServedCatalogue:
    """What a server with --models offers by its flags, which `parser` reads.

    Files are read again each time. The `first` goes before all others, and `others` behind.
    """

    argv: Sequence[str]
    parser: Parser
    settings: PairSettings
    profiles: Mapping[str, Profile]
    first: FirstPair | None
    others: tuple[OfferedModel, ...]

    def offers(self) -> list[OfferedModel]:
        """Return the models in their order; raises UserError."""
        from localspec.server.offers import named_offers  # Starlette: 0.2 s

        presets = self._presets()
        args = presets.args
        named = tuple(map(self._offered, presets.sections))
        hidden = tuple(path for preset in presets.sections if preset.hides_files for path in _files(preset))
        sources = ModelSources(
            presets=named,
            pairs=read_config(config_dir() / "config.toml").pairs,
            folder=args.models_dir,
            hidden=hidden,
        )
        first = (
            None if self.first is None else OfferedPair(name_of_file(self.first.target), self.first.request)
        )
        target = None if self.first is None else self.first.target
        found = offered(served_request(args), sources, first, target)
        server = replace(self.settings.server, asked=self._asked(args))
        settings = replace(self.settings, server=server, parallel=parallel_of(args))
        return [*named_offers(found, settings, self.profiles), *self.others]

    def opened_at_start(self) -> tuple[str, ...]:
        """Return the names of the models that the file of presets opens at the start."""
        return tuple(preset.name for preset in self._presets().sections if preset.opens_at_start)

    def _presets(self) -> Presets:
        return read_presets(self.parser.parse_args(self.argv).models_preset, self.argv, self.parser)

    def _offered(self, preset: Preset) -> Offered:
        folder = preset.args.models_dir
        if folder is not None and not preset.has_source:
            preset.args.model = in_folder(folder, preset.name)
        request = served_request(preset.args)
        if preset.encodes is not None:
            pooling = preset.args.pooling if preset.encodes == "embeddings" else None
            path = find_files(request, OnDisk()).target
            return OfferedEncoder(preset.name, path, preset.encodes, pooling=pooling)
        return OfferedPair(
            preset.name,
            request,
            aliases=preset.aliases,
            asked=self._asked(preset.args),
            parallel=parallel_of(preset.args),
        )

    def _asked(self, args: argparse.Namespace) -> SessionRequest:
        """Return the settings of answers; standard input was read at the start."""
        if not reads_standard_input(args):
            return session_request(args)
        args.system_prompt_file = None
        return replace(session_request(args), system=self.settings.server.asked.system)


def parallel_of(args: argparse.Namespace) -> int:
    """Return the number of answers that a pair writes at once."""
    return 1 if args.share == "off" else int(args.parallel)


def served_request(args: argparse.Namespace) -> PairRequest:
    """Return the pair request of a server's flags."""
    is_one_screen = args.tunnel  # which mostly has one answer at a time
    in_company = parallel_of(args) > 1 and not is_one_screen
    return replace(pair_request(args), in_company=in_company, kv_unified=args.kv_unified)


def _files(preset: Preset) -> tuple[Path, ...]:
    """Return the files of a preset that are on disk."""
    with suppress(UserError):
        files = find_files(pair_request(preset.args), OnDisk())
        return (files.target,) if files.draft is None else (files.target, files.draft)
    return ()
