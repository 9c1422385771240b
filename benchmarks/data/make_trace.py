"""Write the offline trace: conversations about a pasted journal, in ShareGPT's format, from templates and a seed.

    python benchmarks/data/make_trace.py

The first message of each conversation holds a long text, later ones are short questions about it, so that later
prompts have about 2k tokens of history and little that is new. The text means little; only its shape matters.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

TRACE = Path(__file__).with_name("generated_trace.json")
CONVERSATIONS = 24
# characters of the first message; about three and a half make a token
FIRST = (4600, 6200)
EXCHANGES = (4, 6)

SETTINGS = {
    "the harbour": {
        "who": ["the harbour master", "Mara the pilot", "old Teodor", "the night watch", "the ferry crew", "Ines"],
        "thing": ["the red buoy", "a crate of lamp glass", "the spare anchor", "the tide book", "a torn sail"],
        "place": ["on the north pier", "in the boat shed", "beside the ice house", "at the fuel dock"],
        "event": ["a dense fog came in", "the ferry was late", "the crane lost its brake", "the slipway froze"],
    },
    "the orchard": {
        "who": ["the head gardener", "Pavel", "the picking team", "Aunt Josefa", "the beekeeper", "young Lene"],
        "thing": ["the oldest pear tree", "a basket of windfalls", "the grafting knife", "the long ladder", "hive six"],
        "place": ["along the south wall", "in the lower field", "by the cider press", "near the well"],
        "event": ["a late frost settled", "the pump ran dry", "wasps found the press", "hail broke the nets"],
    },
    "the observatory": {
        "who": ["the duty astronomer", "Doctor Amsel", "the two students", "the mechanic", "Yusuf", "the director"],
        "thing": [
            "the small refractor",
            "a box of glass plates",
            "the dome motor",
            "the star chart",
            "the time signal",
        ],
        "place": ["in the east dome", "under the staircase", "on the roof", "in the plate archive"],
        "event": ["clouds hid the comet", "the clock drifted", "the power failed twice", "a meteor lit the valley"],
    },
    "the workshop": {
        "who": ["the foreman", "Greta", "the apprentice", "the night shift", "Mister Osei", "the toolmaker"],
        "thing": [
            "the big lathe",
            "a tray of brass fittings",
            "the steam gauge",
            "the order book",
            "a cracked casting",
        ],
        "place": ["at the back bench", "next to the forge", "in the paint room", "under the gantry"],
        "event": [
            "the belt slipped",
            "a customer changed the drawing",
            "the furnace went cold",
            "the scales disagreed",
        ],
    },
    "the mountain hut": {
        "who": ["the hut keeper", "Sanna", "four climbers", "the mule driver", "the rescue team", "Brother Emil"],
        "thing": ["the iron stove", "a sack of lentils", "the radio mast", "the visitors' book", "a broken ski"],
        "place": ["below the saddle", "in the wood store", "at the upper spring", "by the west window"],
        "event": ["snow closed the path", "the barometer fell", "a slab came down", "the spring ran clear again"],
    },
    "the museum": {
        "who": ["the curator", "the new guard", "Miss Halloran", "the restorer", "a school class", "Viktor"],
        "thing": ["the bronze otter", "a drawer of beetles", "the whale bone", "the loan papers", "a faded map"],
        "place": ["in the third room", "behind the staircase", "in the cold store", "at the front desk"],
        "event": ["the alarm rang for nothing", "a case was found open", "rain came through", "the lift stood still"],
    },
}
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
TIMES = ["before dawn", "at noon", "in the afternoon", "after supper", "at half past nine", "shortly before midnight"]
ENTRIES = [
    "On {day} {event}, and {who} had to leave {thing} {place} until the morning.",
    "{Who} counted {thing} twice {time} and wrote down {number} in the margin.",
    "Because {event} {time}, nobody looked for {thing} {place}.",
    "{Who} asked {who} to carry {thing} back, but it stayed {place} for {number} days.",
    "It took {number} minutes on {day} to find {thing}, which was {place} all along.",
    "{Who} said that {thing} would be needed again if {event} as it did last year.",
    "Nothing was written {time} on {day}, except that {who} mended {thing}.",
    "{Who} and {who} shared the work {place}; {thing} was left for another day.",
    "For {number} hours {who} stood {place}, watched over {thing} and saw no one.",
    "When {event}, {who} moved {thing} and made a note of the hour, {number} past six.",
]
QUESTIONS = [
    "What does the journal say about {thing}?",
    "Who is said to be {place} when {event}?",
    "Please list what {who} did on {day}.",
    "I am not sure that I understand the part about {day}. How long did it take to find {thing}, and who found it?",
    "Is there anything about {who} that I should know before I write to them?",
    "A friend adds this: {entry} {entry} Does that agree with the journal?",
]
ANSWERS = [
    "The journal mentions {thing} more than once.",
    "It names {who}, {place}, {time}.",
    "On {day} {event}, so the notes are short.",
    "There are {number} entries that could be meant, and the clearest is the one about {thing}.",
    "I would ask {who} before relying on it.",
    "There is a line about {who} {place} as well.",
]


def conversation(number: int) -> dict[str, object]:
    """One conversation; the same number always gives the same one."""
    rng = random.Random(f"trace {number}")
    name = rng.choice(list(SETTINGS))
    length = rng.randint(*FIRST)
    text = f"Here is the journal of {name}, volume {rng.randint(2, 90)}. Please read it; I have questions.\n\n"
    while len(text) < length:
        text += "".join(sentence(rng, name, ENTRIES) + " " for _ in range(rng.randint(4, 7))).rstrip() + "\n\n"
    messages = [("human", text.rstrip()), ("gpt", reply(rng, name))]
    for _ in range(rng.randint(*EXCHANGES) - 1):
        messages += [("human", sentence(rng, name, QUESTIONS)), ("gpt", reply(rng, name))]
    return {
        "id": f"generated-{number:02d}",
        "conversations": [{"from": sender, "value": value} for sender, value in messages],
    }


def reply(rng: random.Random, name: str) -> str:
    """A few sentences."""
    return " ".join(sentence(rng, name, ANSWERS) for _ in range(rng.randint(2, 5)))


def sentence(rng: random.Random, name: str, templates: list[str]) -> str:
    """One template, filled in."""
    return "".join(_filled(rng, name, rng.choice(templates)))


def trace() -> str:
    """The file's text."""
    return json.dumps([conversation(number) for number in range(CONVERSATIONS)], indent=1) + "\n"


def _filled(rng: random.Random, name: str, template: str) -> Iterator[str]:
    # each place is filled by itself, so that a sentence may name two people
    for piece in template.split("{"):
        field, closed, rest = piece.partition("}")
        yield _word(rng, name, field) + rest if closed else piece


def _word(rng: random.Random, name: str, field: str) -> str:
    if field == "entry":
        return sentence(rng, name, ENTRIES)
    if field == "number":
        return str(rng.randint(2, 59))
    words = {"day": DAYS, "time": TIMES} | SETTINGS[name]
    word = rng.choice(words[field.lower()])
    return word[0].upper() + word[1:] if field[0].isupper() else word


if __name__ == "__main__":
    TRACE.write_text(trace(), encoding="utf-8")
    print(f"wrote {TRACE}")
