"""The parts of the campaign, each with its cases in the short form and in the long one."""

from __future__ import annotations

from dataclasses import dataclass

from tests.campaign.chats import chats
from tests.campaign.clients import clients, crowds
from tests.campaign.crowd import deaths, served
from tests.campaign.disks import disks
from tests.campaign.engine_calls import engine_calls
from tests.campaign.headers import headers, opened, shrunk
from tests.campaign.kills import kills
from tests.campaign.log import Part
from tests.campaign.lying_hub import lying_hub
from tests.campaign.requests import requests
from tests.campaign.templates import templates
from tests.campaign.turns import turns


@dataclass(frozen=True, slots=True)
class Sized:
    """A part, and how many cases of it are worth their time."""

    run: Part
    short: int
    long: int
    about: str


PARTS = {
    "headers": Sized(headers, 60, 10_000, "edited model files are read in this process"),
    "shrunk": Sized(shrunk, 40, 2_000, "the same, edits by Hypothesis"),
    "opened": Sized(opened, 3, 400, "edited model files are opened by the engine"),
    "templates": Sized(templates, 40, 5_000, "chat templates are rendered"),
    "chats": Sized(chats, 3, 100, "two programs at one file of chats, beside a plain model of it"),
    "engine_calls": Sized(engine_calls, 3, 150, "calls, cancels, ends and deaths of the engine"),
    "kills": Sized(kills, 4, 200, "kills of answers, of the screen, the tuner, downloads and migrations"),
    "disks": Sized(disks, 4, 200, "disks that are full or only to be read, and clocks that jump"),
    "lying_hub": Sized(lying_hub, 8, 1_000, "a hub that lies in its fields and breaks its answers"),
    "requests": Sized(requests, 150, 10_000, "malformed requests to the server"),
    "clients": Sized(clients, 8, 500, "four clients of one server, some of whom leave, kills of its engine"),
    "crowds": Sized(crowds, 3, 286, "eight clients, seven with malformed requests, kills of the engine"),
    "served": Sized(
        served, 3, 5_000, "eight clients of `localspec serve --models`, whose models come and go"
    ),
    "deaths": Sized(deaths, 2, 20, "the same, kills of its engine while all are busy"),
    "turns": Sized(turns, 40, 5_000, "turns with edits, cancels, kills and other models"),
}
