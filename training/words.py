"""Word lists, and the kinds of records (schemas) that the recall tasks are made of."""

# ruff: noqa: SIM905 (word lists read better as text)
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NOUNS = """
anchor apple arrow badge banjo barrel basket beacon bell bench blanket boat bottle branch brick bridge broom brush
bucket button cabin cable camel candle canoe canyon carpet castle chain chair cherry circle cliff clock cloud coat
comet copper coral cotton cradle crane crown curtain daisy dart desert desk diamond dolphin dragon drum eagle ember
engine falcon feather fern ferry fiddle flag flame flute forest fossil fountain fox galaxy garden garlic gate ginger
glacier glove goose grape gravel guitar hammer harbor hazel helmet heron hill honey horn island ivory jacket jungle
kettle kite ladder lake lamp lantern leaf lemon lily lion lizard magnet maple marble meadow melon mirror mountain
needle nest oak ocean olive onion orchid otter owl paddle panda parrot pearl pebble pencil pepper piano pillow pine
planet plum pocket pond pony prairie puzzle quartz quilt rabbit radio raven ribbon river robin rocket rope ruby
saddle salmon sand scarf shell shield silk silver spoon spruce star stone storm sugar sunset swan table tiger timber
tower trumpet tulip tunnel turtle valley velvet violin wagon walnut water whale wheat wheel whistle willow window
winter wolf wood yarn zebra
""".split()
ADJECTIVES = """
amber ancient bitter blue bold brave bright broad calm clever cold crimson dark deep dry early eager empty fast
fresh gentle giant golden grand green happy heavy hidden hollow icy jolly late lazy light little lonely loud lucky
mild misty narrow new noble old orange pale plain polite proud purple quick quiet rapid red round royal rusty sharp
shiny silent simple sleepy slow small smooth soft solid steep still strong sunny sweet swift tall tame tiny warm
white wide wild wise yellow young
""".split()
NAMES = """
Adam Alice Amir Anna Arthur Bella Ben Carla Carlos Chloe Clara Daniel David Diana Dora Edward Elena Emma Eric Fatima
Felix Fiona Frank George Grace Hannah Harry Helen Henry Ida Irene Isaac Jack James Jane Jonas Julia Karl Kate Laura
Leo Lily Linda Lucas Lucy Maria Mark Martin Mary Max Mia Michael Mona Nadia Nathan Nina Noah Nora Oliver Omar Oscar
Paul Peter Rachel Ralph Rosa Ruth Samuel Sara Simon Sofia Stella Steven Susan Thomas Tina Victor Vera Walter Wendy
William Yara Zoe
""".split()
CITIES = """
Amsterdam Athens Austin Bangkok Barcelona Berlin Bern Boston Brussels Budapest Cairo Chicago Copenhagen Dallas Delhi
Denver Dublin Edinburgh Florence Geneva Glasgow Hamburg Hanoi Havana Helsinki Houston Istanbul Jakarta Kyoto Lima
Lisbon London Lyon Madrid Manila Melbourne Miami Milan Montreal Moscow Munich Nairobi Naples Oslo Ottawa Oxford
Paris Perth Phoenix Prague Quebec Riga Rome Santiago Seattle Seoul Shanghai Singapore Stockholm Sydney Tokyo Toronto
Turin Utrecht Venice Vienna Warsaw Zurich
""".split()
COLORS = "red blue green yellow black white orange purple pink brown gray gold silver crimson turquoise violet".split()

Draw = Callable[[random.Random], str]


def digits(low: int, high: int) -> Draw:
    """A number of ``low`` to ``high`` digits that does not start with zero."""

    def draw(rng: random.Random) -> str:
        size = rng.randint(low, high)
        return str(rng.randint(10 ** (size - 1), 10**size - 1))

    return draw


def pick(words: list[str]) -> Draw:
    return lambda rng: rng.choice(words)


def pair(rng: random.Random) -> str:
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def serial(rng: random.Random) -> str:
    return f"{rng.choice('ABCDEFGHJKLMNPQRSTUVWXYZ')}{rng.randint(0, 9)}-{rng.randint(100, 999)}"


@dataclass(frozen=True)
class Schema:
    """One kind of record: how keys and values are drawn and how records are stated and asked for.

    ``states`` and ``full`` hold ``{k}`` and ``{v}``, ``asks`` hold ``{k}``; ``plural`` asks for several keys at once.
    """

    key: Draw
    value: Draw
    states: tuple[str, ...]
    asks: tuple[str, ...]
    full: str
    plural: str


def _schema(thing: str, what: str, key: Draw, value: Draw, *extra: str) -> Schema:
    """The usual wordings for "the WHAT of/for THING KEY is VALUE"; ``extra`` adds more statements."""
    k = f"{thing} {{k}}" if thing else "{k}"
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return Schema(
        key,
        value,
        (
            f"The {what} for {k} is {{v}}.",
            f"The {what} of {k} is {{v}}.",
            f"Note that {k} has the {what} {{v}}.",
            f"{k[0].upper() + k[1:] if thing else k} has the {what} {{v}}.",
            f"For {k}, the {what} is {{v}}.",
            *extra,
        ),
        (
            f"What is the {what} for {k}?",
            f"What is the {what} of {k}?",
            f"Which {what} does {k} have?",
            f"Tell me the {what} for {k}.",
            f"Give me the {what} of {k}.",
            f"According to the text, what is the {what} for {k}?",
            f"I need the {what} for {k}.",
            f"Do you know the {what} of {k}?",
        ),
        f"The {what} for {k} is {{v}}.",
        f"What are the {plural} for {thing + ' ' if thing else ''}{{k}}?",
    )


SCHEMAS = (
    _schema(
        "box",
        "code",
        digits(1, 3),
        digits(4, 6),
        "Box {k} opens with the code {v}.",
        "The code for box {k} was set to {v}.",
    ),
    _schema("locker", "combination", digits(1, 3), digits(4, 6), "Locker {k} opens with {v}."),
    _schema("room", "password", digits(1, 3), pick(NOUNS), "The password to enter room {k} is {v}."),
    _schema("ticket", "seat", digits(3, 5), serial),
    _schema("server", "port", pair, digits(4, 5), "The server {k} listens on port {v}."),
    _schema("agent", "codename", pick(NAMES), pair, "Agent {k} goes by the codename {v}."),
    _schema("the", "serial number", pair, serial),
    _schema("the word", "magic number", pick(NOUNS), digits(4, 7), "One of the special magic numbers for {k} is: {v}."),
    _schema("shelf", "item", serial, pick(NOUNS), "On shelf {k} there is one item: {v}."),
    _schema("", "access code", pick(NAMES), digits(4, 6), "{k} uses the access code {v}.", "{k}'s access code is {v}."),
    _schema("", "home city", pick(NAMES), pick(CITIES), "{k} lives in {v}.", "{k} has a house in {v}."),
    _schema("", "favorite color", pick(NAMES), pick(COLORS), "{k} likes the color {v} most."),
    _schema("project", "budget", pair, digits(4, 6)),
    _schema("the key", "value", pick(NOUNS), pick(NOUNS), "{k} maps to {v}."),
)
TERSE = ("{k}: {v}", "{k} = {v}", "{k} -> {v}", "{k} | {v}", "- {k}: {v}")
