"""What flags ask of a pair, and how it would be opened without a plan."""

from __future__ import annotations

import argparse

from localspec.app.opening import find_files, with_config
from localspec.cli.shared.arguments import pair_request
from localspec.cli.shared.opening import TERMINAL
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.models.pair_files import ModelSource, PairFiles
from localspec.models.pair_request import PairRequest


def requested(args: argparse.Namespace) -> PairRequest:
    return with_config(pair_request(args))


def found(request: PairRequest, source: ModelSource = TERMINAL) -> PairFiles:
    return find_files(request, source)


def unplaced(args: argparse.Namespace) -> OpenPlan:
    request = requested(args)
    return as_asked(found(request), request)


def left_as_asked(files: PairFiles, request: PairRequest, **_how: object) -> OpenPlan:
    """Stand in for `placed` where there are no files to look into."""
    return as_asked(files, request)
