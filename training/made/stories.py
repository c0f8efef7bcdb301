"""Little stories from a grammar with many choices per sentence."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.chat_text import chat
from training.documents import Document

PARTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Hero:
    """Who the story is about."""

    name: str
    introduction: str  # with a trait
    kind: str  # as a reader would ask for it
    he: str

    @property
    def is_male(self) -> bool:
        """Tell which pronouns to use."""
        return self.he == "he"


@dataclass(frozen=True, slots=True)
class Plot:
    """What happens to the hero, and the words to fill into sentences."""

    hero: Hero
    want: str
    goal: str
    thing: str
    place: str
    stranger: str
    hiding_place: str

    def fill(self, rng: random.Random, part: str) -> str:
        """Choose a sentence and complete it."""
        sentence: str = rng.choice(PARTS[part])
        return sentence.format(
            name=self.hero.name,
            he=self.hero.he,
            He=self.hero.he.capitalize(),
            his="his" if self.hero.is_male else "her",
            thing=self.thing,
            goal=self.goal,
            a_tree=self.hiding_place,
        )


def made_stories(rng: random.Random, count: int = 14000) -> Iterator[Document]:
    """Yield chats that ask for a story and get one."""
    for _ in range(count):
        plot = choose_plot(rng)
        paragraphs = [beginning(rng, plot), meeting(rng, plot), change(rng, plot), ending(rng, plot)]
        story = "\n\n".join(with_capitals(paragraph) for paragraph in paragraphs)
        yield Document("made-stories", chat(rng, request(rng, plot), story))


def with_capitals(text: str) -> str:
    """Write "The" where "the fox" starts a sentence."""
    return re.sub(r"(^|[.!?] |\n)the ", lambda match: match.group(1) + "The ", text)


def choose_hero(rng: random.Random) -> Hero:
    """Choose an animal, or a child with a name."""
    if rng.random() < 0.5:
        animal = rng.choice(PARTS["animals"])
        he = rng.choice(["he", "she"])
        described = f"a {rng.choice(PARTS['traits'])} {animal}"
        return Hero(f"the {animal}", described, described, he)
    he = rng.choice(["he", "she"])
    child, names = ("boy", "boys") if he == "he" else ("girl", "girls")
    name = rng.choice(PARTS[names])
    return Hero(
        name, f"a {rng.choice(PARTS['traits'])} {child} called {name}", f"a {child} called {name}", he
    )


def choose_plot(rng: random.Random) -> Plot:
    """Choose a hero, a wish, and what it needs."""
    hero = choose_hero(rng)
    wish = rng.choice(PARTS["wishes"])
    return Plot(
        hero,
        wish["want"],
        wish["goal"],
        thing=rng.choice(PARTS["things"]),
        place=rng.choice(PARTS["places"]),
        stranger=rng.choice(PARTS["strangers"]),
        hiding_place=rng.choice(PARTS["hiding_places"]),
    )


def beginning(rng: random.Random, plot: Plot) -> str:
    """Introduce the hero and the wish."""
    hero, place = plot.hero, plot.place
    name, introduction, he = hero.name, hero.introduction, hero.he.capitalize()
    sentences = [
        rng.choice(
            [
                f"Once upon a time there was {introduction} who lived {place}.",
                f"There was once {introduction}. {he} lived {place}.",
                f"Long ago, {place}, there lived {introduction}.",
                f"{place[0].upper() + place[1:]} lived {introduction}.",
            ]
        ),
        rng.choice(
            [
                f"More than anything, {name} wanted {plot.want}.",
                f"Every day {name} dreamed of one thing: {plot.want}.",
                f"{name} had only one wish. {he} wanted {plot.want}.",
            ]
        ),
    ]
    if rng.random() < 0.7:
        sentences.append(rng.choice(PARTS["troubles"]))
    return " ".join(sentences)


def meeting(rng: random.Random, plot: Plot) -> str:
    """Send the hero out to meet a stranger."""
    name, he = plot.hero.name, plot.hero.he
    departure = [
        f"One morning {name} left the house very early.",
        f"One day {name} set out with {plot.thing}.",
        f"So one evening {name} packed a bag and went away.",
        f"One day, when everyone was asleep, {name} opened the door.",
    ]
    arrival = [
        f"On the road {he} met {plot.stranger}.",
        f"After a while {he} met {plot.stranger}.",
        f"Near the river stood {plot.stranger}.",
    ]
    sentences = [rng.choice(departure), rng.choice(PARTS["weather"]), rng.choice(arrival)]
    look = f"Why do you look so {rng.choice(PARTS['feelings'])}?"
    ask = rng.choice(["Where are you going?", "What are you looking for?", look, "Who are you?"])
    reply = rng.choice(
        [
            f"I want {plot.want}",
            f"I am looking for a way {plot.want}",
            f"I only want {plot.want}, but I do not know how",
        ]
    )
    asked = rng.choice(["asked the stranger", "said a friendly voice", "was the question"])
    advice = rng.choice(PARTS["advice"])
    return f'{" ".join(sentences)}\n\n"{ask}" {asked}.\n\n"{reply}," said {name}.\n\n"{advice}"'


def change(rng: random.Random, plot: Plot) -> str:
    """Let the hero try, and something change."""
    name, he = plot.hero.name, plot.hero.he
    feeling = rng.choice(PARTS["feelings"])
    sentences = [
        rng.choice(
            [
                f"{name} was {feeling}.",
                f"{name} said thank you and went on.",
                f"{name} did not understand, but {he} remembered the words.",
            ]
        ),
        plot.fill(rng, "tries"),
    ]
    if rng.random() < 0.6:
        sentences.append(plot.fill(rng, "finds"))
    sentences.append(plot.fill(rng, "turns"))
    return " ".join(sentences)


def ending(rng: random.Random, plot: Plot) -> str:
    """End well."""
    he, goal = plot.hero.he, plot.goal
    him = "him" if plot.hero.is_male else "her"
    found = rng.choice(
        [
            f"In the end {he} found {goal}, and it was better than in any dream.",
            f"{he.capitalize()} did not find {goal} that day, but {he} found something better.",
            f"And there it was, {goal}, just in front of {him}.",
        ]
    )
    return f"{found} {plot.fill(rng, 'ends')}"


def request(rng: random.Random, plot: Plot) -> str:
    """Ask for the story."""
    who = plot.hero.kind
    described = plot.hero.introduction.split(" called ", maxsplit=1)[0]
    return rng.choice(
        [
            f"Write a short story about {who}.",
            f"Tell me a story about {who}.",
            f"Tell me a story about {who} who wants {plot.want}.",
            f"Write a story about {plot.thing} and {who}.",
            "Tell me a story.",
            "Write a little story for children.",
            f"Write a short story about {described} who wants {plot.want}.",
            "Please tell me a bedtime story.",
        ]
    )
