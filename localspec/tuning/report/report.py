"""The tuning report: one HTML page that needs nothing beside itself."""

from __future__ import annotations

from pathlib import Path

from localspec.storage.paths import write_atomically
from localspec.tuning.report.data import LandscapeCell, Prediction, ReportInput, ReportModel, TaskReport
from localspec.tuning.report.page import page

__all__ = [
    "LandscapeCell",
    "Prediction",
    "ReportInput",
    "ReportModel",
    "TaskReport",
    "render",
    "write_report",
]


def render(given: ReportInput) -> str:
    """Return the report as HTML with inline style and inline SVG, nothing to fetch and nothing to run."""
    return page(given)


def write_report(path: Path, given: ReportInput) -> None:
    """Write the report in one step, for its owner's eyes; raises StoreError."""
    write_atomically(path, render(given))
