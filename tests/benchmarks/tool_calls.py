"""What grammars that begin with a call do for a model's calls: valid ones, drafts in and outside them, speed.

python -m tests.benchmarks.tool_calls -m TARGET [-md DRAFT] [--modes off,sd] [--questions 30] [--temp 0]

Thirty questions that ask for one of five tools with nested schemas. The arms take turns question by question:
calls that are free, and calls that follow their schemas. A call counts as valid if its arguments, as clients
get them, meet the tool's schema.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from localspec.chat.calls.form import ToolFormat, tool_format
from localspec.chat.calls.reader import AnswerReader
from localspec.chat.calls.triggers import call_triggers
from localspec.chat.schema_check import enforced
from localspec.decoding.rounds import Round
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama.lazy_grammar import Heads, LazyConstraint
from localspec.llama.schemas.check import flaw
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling

ARMS = ("free", "by schema")
LONGEST = 250  # tokens of an answer


def text(**more: Any) -> dict[str, Any]:  # noqa: ANN401  any keywords of a schema
    return {"type": "string", **more}


def listed(items: dict[str, Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401  any keywords of a schema
    return {"type": "array", "items": items, **more}


def shape(required: str, **properties: Any) -> dict[str, Any]:  # noqa: ANN401  schemas
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


DATE = text(pattern=r"^20\d\d-\d\d-\d\d$", description="as 2026-03-09")
TIME = text(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description="as 17:30")
NUMBER, WHOLE, YES = {"type": "number"}, {"type": "integer", "minimum": 1}, {"type": "boolean"}
ADDRESS = shape("city country", city=text(), country=text(pattern="^[A-Z]{2}$", description="ISO code"))
ITEM = shape("what count price", what=text(), count=WHOLE, price=NUMBER)
DAY = {"enum": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "book_flight": (
        "Books a flight.",
        shape(
            "origin destination departure passengers",
            origin=text(pattern="^[A-Z]{3}$", description="IATA code of the airport"),
            destination=text(pattern="^[A-Z]{3}$", description="IATA code of the airport"),
            departure=DATE,
            return_date=DATE,
            passengers=listed(
                shape("name category", name=text(), category={"enum": ["adult", "child", "infant"]}),
                minItems=1,
            ),
            cabin={"enum": ["economy", "premium_economy", "business", "first"]},
        ),
    ),
    "create_event": (
        "Writes an event into the calendar.",
        shape(
            "title date start attendees",
            title=text(),
            date=DATE,
            start=TIME,
            duration_minutes=WHOLE,
            attendees=listed(shape("email", email=text(pattern="^[^@ ]+@[^@ ]+$"), is_optional=YES)),
            repeats=shape("every", every={"enum": ["day", "week", "month", "year"]}, until=DATE),
            place=shape("kind", kind={"enum": ["room", "video", "phone"]}, name=text()),
        ),
    ),
    "search_products": (
        "Searches the shop.",
        shape(
            "query",
            query=text(),
            price=shape("", least=NUMBER, most=NUMBER, currency={"enum": ["EUR", "USD", "GBP"]}),
            colours=listed({"enum": ["black", "white", "red", "blue", "green"]}, maxItems=3),
            is_in_stock=YES,
            order={"enum": ["price_ascending", "price_descending", "rating", "newest"]},
            page=WHOLE,
        ),
    ),
    "set_heating": (
        "Sets the heating of rooms.",
        shape(
            "rooms schedule",
            rooms=listed({"enum": ["kitchen", "bedroom", "bathroom", "office"]}, minItems=1),
            schedule=listed(
                shape(
                    "days since celsius",
                    days=listed(DAY, minItems=1),
                    since=TIME,
                    celsius={"type": "number", "minimum": 5, "maximum": 30},
                ),
                minItems=1,
            ),
            is_eco=YES,
        ),
    ),
    "send_invoice": (
        "Sends an invoice.",
        shape(
            "customer items currency due",
            customer=shape("name address", name=text(), address=ADDRESS),
            items=listed(ITEM, minItems=1),
            currency={"enum": ["EUR", "USD", "GBP"]},
            due=DATE,
        ),
    ),
}
QUESTIONS = (
    "Book me, Ann Lee, a flight from Berlin to Lisbon on the 4th of May 2026, business class.",
    "I need two seats from Paris CDG to JFK on 2026-07-01 and back on the 15th: Max Roth and his baby Mia.",
    "Fly the Kowalski family (Jan, Ewa and little Zofia, 6) from Warsaw to Rome next August 3rd, 2026.",
    "Please get Tom a first class ticket, London Heathrow to Singapore, 12 December 2026.",
    "Cheapest way for Ines and Pablo from Madrid to Oslo, leaving 9 March 2026, returning four days later.",
    "Book economy for Dr. Sato: Tokyo Haneda to Sydney on Christmas Day 2026.",
    "Put a meeting with bob@acme.com and eve@acme.com in my calendar on March 3rd 2026 at half past two.",
    "Schedule a weekly stand-up from 5 January 2026 at 9:15, with dev@x.org, until the end of June.",
    "Dinner with mum (mum@home.net) on 14 February 2026, 7 pm, at the room Trattoria Roma.",
    "Create a 45 minute video call on 2026-04-20 at 11 with cfo@corp.io; joe@corp.io may skip it.",
    "Remind me of my anniversary every year, next on 2026-09-09 at 8 in the morning, with ann@lee.de.",
    "Set up the retro: Friday 27 March 2026, 4 pm, two hours, team@x.org, room Blue.",
    "Find red or blue running shoes below 80 euros, best rated first.",
    "Show me page 2 of white desks that are in stock.",
    "Search for a laptop between 700 and 1200 dollars, newest first.",
    "I want a green tent, cheapest first, no more than 150 pounds.",
    "Are there black headphones in stock? Most expensive first, please.",
    "Look for a coffee grinder under 99.50 EUR.",
    "Heat the office to 21 degrees on weekdays from 8 in the morning.",
    "Set the bathroom to 23.5 on Saturday and Sunday from 7:30, in eco mode.",
    "Bedroom and kitchen: 17 degrees at night from 22:00 every day, and 20 from 06:30.",
    "Turn the kitchen down to 12 degrees on Monday from noon.",
    "Eco heating for all four rooms: 19 degrees from 5 pm, Tuesday and Thursday.",
    "Make the bedroom 16 degrees from 23:15 on Fridays.",
    "Invoice Lena Maier in Vienna, Austria: 3 chairs at 49.90 and 1 table at 210, euros, due 31 May 2026.",
    "Bill ACME Ltd, Leeds, UK, for 12 hours of consulting at 95 pounds, due in 2026 on the first of June.",
    "Send Carlos Ruiz (Austin, United States) an invoice for one website, 4,800 dollars, due 2026-03-15.",
    "Invoice the Oslo office in Norway for 200 brochures at 0.75 EUR each, due 10 April 2026.",
    "Bill Mme Dupont, Lyon, France: 2 nights at 120 and 2 breakfasts at 14 euros, due 2026-02-02.",
    "An invoice to Kenji Mori, Osaka, Japan: 5 licences at 39 USD, due 30 September 2026.",
)


@dataclass
class Found:
    """What came of one arm in one mode."""

    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    python_s: float = 0.0
    drafts: Counter[tuple[bool, str]] = field(default_factory=Counter)  # inside of calls or not
    answers: Counter[str] = field(default_factory=Counter)
    flaws: list[str] = field(default_factory=list)

    def add(self, round_: Round, *, is_inside: bool) -> None:
        stats = round_.stats
        self.seconds += stats.seconds
        self.python_s += stats.python_s
        self.tokens += len(round_.tokens)
        self.rounds += 1
        self.drafts[is_inside, "drafted"] += stats.drafted
        self.drafts[is_inside, "accepted"] += stats.accepted
        self.drafts[is_inside, "tokens"] += len(round_.tokens)

    def accepted(self, *, is_inside: bool) -> str:
        drafted = self.drafts[is_inside, "drafted"]
        return f"{self.drafts[is_inside, 'accepted'] / drafted:.0%} of {drafted}" if drafted else "-"


class Asked:
    """Open models, and their form of calls."""

    def __init__(self, models: Runtime) -> None:
        self.models = models
        self.tools = tuple(
            json.dumps(
                {"type": "function", "function": {"name": name, "description": what, "parameters": schema}}
            )
            for name, (what, schema) in TOOLS.items()
        )
        self.form: ToolFormat = tool_format(models.render)
        self.triggers = call_triggers(self.form, [enforced(tool)[0] for tool in self.tools], self._token)
        self._heads = [Heads.of(trigger) for trigger in self.triggers]

    def _token(self, tag: str) -> int | None:
        tokens = self.models.tokenize(tag)
        return tokens[0][0] if len(tokens) == 1 else None

    def answer(self, request: Request, found: Found) -> str:
        """Return the text of an answer, and add what it took."""
        models, written = self.models, list[int]()
        observer = LazyConstraint(models._grammars, self._heads, 0)
        with (
            models._contexts.at_work(),
            closing(models._rounds(answer := models.begin(request), models._rules(answer))) as events,
        ):
            for event in events:
                if isinstance(event, Round):
                    found.add(event, is_inside=observer.may_refuse(written, ()))
                    written += event.tokens
        ends = models._target_model.end_tokens
        kept = [token for token in written if token not in ends]
        return models._target_model.vocabulary.decode(kept, special=True)

    def judge(self, answer: str, found: Found) -> None:
        """Read the calls of an answer as a client gets them, and check them."""
        reader, calls = AnswerReader(self.form, self.tools), dict[int, list[str]]()
        for piece in (*reader.feed(answer), *reader.feed("", more=False)):
            if piece.kind == "call":
                calls.setdefault(piece.index, [piece.name, ""])[1] += piece.text
        found.answers["all"] += 1
        found.answers["with calls"] += bool(calls)
        for name, arguments in calls.values():
            found.answers["calls"] += 1
            try:
                wrong = flaw(TOOLS[name][1], json.loads(arguments))
            except ValueError:
                wrong = "no JSON"
            found.answers["valid"] += not wrong
            if wrong:
                found.flaws.append(f"{name}: {wrong} in {arguments}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", type=Path, required=True)
    parser.add_argument("-md", type=Path)
    parser.add_argument("--modes", default="off")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--threads", type=int, help="of each model")
    parser.add_argument("--flaws", action="store_true", help="print what was wrong with calls")
    args = parser.parse_args()
    modes: list[Mode] = [mode for mode in get_args(Mode) if mode in args.modes.split(",")]
    options = ModelOptions(args.m, context=4096, gpu_layers=0, threads=args.threads)
    draft = None if args.md is None else replace(options, path=args.md)
    found: dict[tuple[Mode, str], Found] = defaultdict(Found)
    with Runtime.open(OpenPlan(options, draft)) as models:
        asked = Asked(models)
        for number, question in enumerate(QUESTIONS[:: len(QUESTIONS) // args.questions]):
            for mode in modes:
                for arm in ARMS if number % 2 else ARMS[::-1]:
                    request = Request(
                        (Message("user", question),),
                        Sampling(temperature=args.temp),
                        EngineSettings(mode=mode, draft_length=args.draft_length, min_confidence=0.0),
                        max_tokens=LONGEST,
                        seed=number,
                        tools=asked.tools,
                        shows_control=True,
                        triggers=asked.triggers if arm == ARMS[1] else (),
                    )
                    one = found[mode, arm]
                    asked.judge(asked.answer(request, one), one)
            print(f"{number + 1} of {args.questions}", end="\r", file=sys.stderr, flush=True)
    print_table(found)
    if args.flaws:
        for (mode, arm), one in found.items():
            print(f"\n{mode}, {arm}", *one.flaws, sep="\n  ")


def print_table(found: dict[tuple[Mode, str], Found]) -> None:
    """Print a row for each arm in each mode."""
    print(
        "mode   calls       answers with calls  calls  valid  tokens/s  accepted in calls  outside"
        "        Python/round"
    )
    for (mode, arm), one in found.items():
        answers = one.answers
        print(
            f"{mode:6} {arm:11} {answers['with calls']:3} of {answers['all']:3}          {answers['calls']:5}"
            f"  {answers['valid']:5}  {one.tokens / one.seconds:8.2f}  {one.accepted(is_inside=True):17}"
            f"  {one.accepted(is_inside=False):13}  {one.python_s / one.rounds * 1e3:.2f} ms"
        )


if __name__ == "__main__":
    main()
