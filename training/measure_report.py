"""The figures of a measured pair, as JSON for programs and as Markdown for the model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from training.progress import log
from training.speculation import FAN_OUTS, FanOut, GreedyRuns, power_law

DRAFT_LENGTHS = range(1, 9)
ALL_TASKS_RANK, TASK_RANK = 16, 8  # up to which rank the target's choices are listed
ALL_TASKS = "all"
ACCEPTANCE_NOTE = (
    "Greedy: share of draft tokens equal to the target's choice at one position (match), then mean number of "
    "consecutive accepted tokens per target pass for draft length K. T={temperature}: mean of sum(min(p, q))."
)
RANK_NOTE = (
    "Rank of the target's greedy choice in the draft where the draft's first guess is wrong "
    "({cases} cases, all tasks): {ranks}."
)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Both models on one kind of document."""

    tokens: int
    target: float
    draft: float


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Both models on one kind of work; `greedy` and `sampled` (tokens per pass) are keyed by draft length."""

    prompts: int
    greedy_tokens: int
    sampled_tokens: int
    entropy_bits: float
    greedy_match: float
    greedy: dict[int, GreedyRuns]
    sampled_acceptance: float
    sampled: dict[int, float]
    fan_out: FanOut


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured."""

    target: str
    draft: str
    temperature: float
    perplexity: dict[str, Perplexity]
    tasks: dict[str, TaskResult] = field(default_factory=dict)

    def fan_out(self) -> FanOut:
        """Return the fan-out of all tasks together."""
        return sum((task.fan_out for task in self.tasks.values()), FanOut())


def fan_out_json(fan_out: FanOut, highest_rank: int) -> dict[str, object]:
    """Return hit rates by F, their power laws and the ranks."""
    greedy, sampled = fan_out.greedy_misses(), fan_out.sampled_misses()
    laws = {"greedy_power_law": power_law(greedy), "sampled_power_law": power_law(sampled)}
    return {
        "rejections": len(fan_out.ranks),
        "rank_share": fan_out.rank_shares(highest_rank),
        "greedy_hit": {f: round(1 - miss, 4) for f, miss in zip(FAN_OUTS, greedy, strict=True)},
        "sampled_hit": {f: round(1 - miss, 4) for f, miss in zip(FAN_OUTS, sampled, strict=True)},
        **{name: law and asdict(law) for name, law in laws.items()},
    }


def task_json(task: TaskResult) -> dict[str, object]:
    """Return the figures of one kind of work."""
    greedy = {
        length: {
            "mean_run": round(runs.accepted / runs.passes, 3),
            "accept_rate": round(runs.accepted / runs.proposed, 3),
            "tokens_per_pass": round(runs.accepted / runs.passes + 1, 3),
        }
        for length, runs in task.greedy.items()
    }
    return {
        "prompts": task.prompts,
        "greedy_tokens": task.greedy_tokens,
        "sampled_tokens": task.sampled_tokens,
        "entropy_bits": round(task.entropy_bits, 3),
        "greedy_match": round(task.greedy_match, 4),
        "greedy": greedy,
        "sampled_acceptance": round(task.sampled_acceptance, 4),
        "sampled": {length: round(tokens, 3) for length, tokens in task.sampled.items()},
        **fan_out_json(task.fan_out, TASK_RANK),
    }


def as_json(report: Report) -> dict[str, object]:
    """Return the report as plain values."""
    return {
        "target": report.target,
        "draft": report.draft,
        "temperature": report.temperature,
        "tasks": {name: task_json(task) for name, task in report.tasks.items()},
        "perplexity": {kind: asdict(measured) for kind, measured in report.perplexity.items()},
        ALL_TASKS: fan_out_json(report.fan_out(), ALL_TASKS_RANK),
    }


def row(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table, with an empty line before and after."""
    return ["", row(head), "|" + "---|" * len(head), *map(row, rows), ""]


def acceptance_rows(report: Report) -> list[list[str]]:
    """Return a line for each task: agreement, and accepted tokens by draft length."""
    rows = []
    for name, task in report.tasks.items():
        runs = [f"{each.accepted / each.passes:.2f}" for each in task.greedy.values()]
        head = [name, f"{task.entropy_bits:.2f}", f"{task.greedy_match:.3f}"]
        rows.append([*head, *runs, f"{task.sampled_acceptance:.3f}"])
    return rows


def fan_out_rows(report: Report) -> list[list[str]]:
    """Return two lines for each task and for all together: hits by F."""
    rows = []
    for name, fan_out in [
        *((n, task.fan_out) for n, task in report.tasks.items()),
        (ALL_TASKS, report.fan_out()),
    ]:
        for mode, misses in (("greedy", fan_out.greedy_misses()), ("sampled", fan_out.sampled_misses())):
            law = power_law(misses)
            fit = f"c={law.c}, r={law.r}" if law else "-"
            rows.append([name, mode, *(f"{1 - miss:.2f}" for miss in misses), fit])
    return rows


def as_markdown(report: Report) -> str:
    """Return the sections of the model card that hold figures."""
    everything = report.fan_out()
    shares = everything.rank_shares(ALL_TASKS_RANK)
    ranks = ", ".join(f"{rank}: {100 * share:.1f} %" for rank, share in shares.items())
    perplexity = [
        [kind, str(each.tokens), f"{each.target:.2f}", f"{each.draft:.2f}"]
        for kind, each in report.perplexity.items()
    ]
    lengths = [f"K={length}" for length in DRAFT_LENGTHS]
    lines = [
        "## Perplexity on held-out text",
        *table(["kind", "tokens", "target", "draft"], perplexity),
        "## Acceptance",
        "",
        ACCEPTANCE_NOTE.format(temperature=report.temperature),
        *table(["task", "entropy, bits", "match", *lengths, "sampled"], acceptance_rows(report)),
        "## Fan-out: is the target's token among the draft's F next best?",
        *table(["task", "mode", *(f"F={f}" for f in FAN_OUTS), "miss ~ c F^-r"], fan_out_rows(report)),
        RANK_NOTE.format(cases=len(everything.ranks), ranks=ranks),
    ]
    return "\n".join(lines) + "\n"


def write_report(report: Report, folder: Path, name: str) -> None:
    """Write a report as JSON and as Markdown, and show it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = as_markdown(report)
    (folder / f"{name}.json").write_text(json.dumps(as_json(report), indent=1), encoding="utf-8")
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    log.info("%s", text)
