"""Generators of chat-form recall tasks: used for training, for ``score.py`` and for later evaluation.

Everything is drawn from a ``random.Random``, so a seed fixes a sample.  A sample is a list of chat messages whose
assistant messages are the right answers; with ``turns=1`` it is one question and one answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from training.words import ADJECTIVES, NAMES, NOUNS, SCHEMAS, TERSE, Schema

Message = dict[str, str]
INTROS = (
    "Read the text below and answer the question.",
    "Here is some text.",
    "Please remember the following.",
    "Use this text to answer.",
    "Keep these notes in mind.",
    "Some facts are hidden in the text below.",
    "I will ask you about this text.",
)
SYSTEMS = ("You are a helpful assistant.", "Answer briefly.", "You answer questions about the given text.")
NOISE = (
    "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.",
    "The weather was mild that day.", "Nothing else happened.", "The road goes on.", "A dog barked far away.",
    "People walked by the river.", "The shop closed at noon.", "It rained in the evening.",
)  # fmt: skip
CHATS = (
    (("Hello", "Hello!", "Hi", "Hi there!", "Hey", "Good morning", "Good evening"), ("Hello! How can I help you?",)),
    (("Who are you?", "What are you?", "What is your name?", "Tell me about yourself."),
     ("I am a small language model. I can answer questions about a text that you give me.",)),
    (("What can you do?", "How can you help me?", "What are you good at?"),
     ("Give me a text with some facts, and I will answer questions about it.",)),
    (("Thanks", "Thank you!", "Thanks a lot.", "Great, thank you."), ("You are welcome!",)),
    (("Bye", "Goodbye!", "See you later."), ("Goodbye! Have a nice day.",)),
    (("How are you?", "How are you today?"), ("I am fine, thank you. How can I help you?",)),
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One conversation; every assistant message is a right answer. ``task`` names its generator."""

    task: str
    messages: list[Message]


@dataclass
class Scene:
    """A context in one user message, and (question, answer) pairs about it."""

    context: str
    pairs: list[tuple[str, str]]


def _distinct(rng: random.Random, draw: Callable[[random.Random], str], number: int) -> list[str]:
    """Up to ``number`` different draws, in drawing order."""
    found: dict[str, None] = {}
    for _ in range(4 * number):
        if len(found) == number:
            break
        found.setdefault(draw(rng))
    return list(found)


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return round(low * (max(high, low) / low) ** rng.random())


class Sampler:
    """Draws samples of any task with a context of about ``budget`` tokens.

    ``filler`` is a list of English sentences, ``count`` gives a text's number of tokens, ``questions`` are rows with
    ``text`` and ``pairs`` of (question, answer) for passage questions (training only).
    """

    def __init__(
        self,
        filler: Sequence[str],
        count: Callable[[str], int],
        questions: Sequence[dict] = (),
        sizes: Sequence[int] = (),
    ) -> None:
        self.filler, self.count, self.questions = filler, count, questions
        self.sizes = sizes or [count(sentence) + 1 for sentence in filler]

    def make(self, task: str, rng: random.Random, budget: int, turns: int = 1) -> Sample:
        """A sample of ``task`` whose context has about ``budget`` tokens, with up to ``turns`` questions."""
        if task in ("chat", "sentence"):
            return Sample(task, self._chat(rng, task, turns))
        if task == "notes":
            return Sample(task, self._notes(rng, budget, turns))
        scene = TASKS[task](self, rng, budget, turns)
        return Sample(task, _conversation(rng, scene))

    def _noise(self, rng: random.Random, budget: int) -> list[str]:
        """Sentences of about ``budget`` tokens in all: natural English, or repeated plain ones, or random words."""
        kind = rng.random()
        out: list[str] = []
        while budget > 0:
            if kind < 0.7:
                at = rng.randrange(len(self.filler))
                sentence, size = self.filler[at], self.sizes[at]
            elif kind < 0.88:
                sentence = rng.choice(NOISE)
                size = len(sentence) // 4
            else:
                sentence = f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} saw a {rng.choice(NOUNS)}."
                size = 10
            budget -= size
            out.append(sentence)
        return out

    def _scatter(self, rng: random.Random, facts: list[str], budget: int, lines: bool = False) -> str:
        """Facts in order at random depths among noise, which fills what they leave of ``budget`` tokens.

        ``lines`` puts every piece on a line of its own; without it that is so in some samples only.
        """
        room = budget - self.count("\n".join(facts))
        noise = self._noise(rng, room) if room > 8 else []
        slots = sorted(rng.randint(0, len(noise)) for _ in facts)
        merged: list[str] = []
        at = 0
        for slot, fact in zip(slots, facts, strict=True):
            merged += [*noise[at:slot], fact]
            at = slot
        merged += noise[at:]
        return (" " if not lines and noise and rng.random() < 0.6 else "\n").join(merged)

    def _facts(
        self, rng: random.Random, schema: Schema, keys: list[str], values: list[str], one_form: bool
    ) -> list[str]:
        form = rng.choice(schema.states)
        forms = [form if one_form else rng.choice(schema.states) for _ in keys]
        facts = [f.format(k=k, v=v) for f, k, v in zip(forms, keys, values, strict=True)]
        return [fact[0].upper() + fact[1:] for fact in facts]

    def recall(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """Key-value records; half of the samples are dense (as many as fit), half have 4 or more among noise."""
        schema = rng.choice(SCHEMAS)
        terse, one_form = rng.random() < 0.4, rng.random() < 0.5
        form = rng.choice(TERSE)

        def state(keys: list[str], values: list[str]) -> list[str]:
            if terse:
                return [form.format(k=k, v=v) for k, v in zip(keys, values, strict=True)]
            return self._facts(rng, schema, keys, values, one_form)

        trial = state(["12"] * 6, ["12345"] * 6)
        most = max(4, 6 * budget // (self.count("\n".join(trial)) + 6))
        keys = _distinct(rng, schema.key, most if rng.random() < 0.5 else _log_uniform(rng, 4, most))
        values = [schema.value(rng) for _ in keys]
        return Scene(self._scatter(rng, state(keys, values), budget), _ask(rng, schema, keys, values, turns))

    def needle(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """One to three facts (more when more is asked) of different kinds in a long text; asks for one of them."""
        schemas = rng.sample(SCHEMAS, rng.randint(1, max(3, min(turns, budget // 60, 8))))
        facts, pairs = [], []
        for schema in schemas:
            key, value = schema.key(rng), schema.value(rng)
            facts += self._facts(rng, schema, [key], [value], True)
            pairs += _ask(rng, schema, [key], [value], 1)
        text = self._scatter(rng, facts, budget)
        rng.shuffle(pairs)
        return Scene(text, pairs[:turns])

    def multikey(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """Eight to forty facts of one kind and one wording, spread over noise; the question names one key."""
        schema = rng.choice(SCHEMAS)
        most = max(4, min(40, budget // 24))
        keys = _distinct(rng, schema.key, rng.randint(min(8, most), most))
        values = [schema.value(rng) for _ in keys]
        facts = self._facts(rng, schema, keys, values, True)
        return Scene(self._scatter(rng, facts, budget), _ask(rng, schema, keys, values, turns))

    def multiquery(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """As multikey with up to sixteen keys, but each question asks for two to four keys at once."""
        schema = rng.choice(SCHEMAS)
        keys = _distinct(rng, schema.key, rng.randint(4, max(4, min(16, budget // 24))))
        values = dict(zip(keys, (schema.value(rng) for _ in keys), strict=True))
        facts = self._facts(rng, schema, keys, list(values.values()), True)
        pairs = []
        for _ in range(turns):
            some = rng.sample(keys, min(len(keys), rng.randint(2, 4)))
            asked = ", ".join(some[:-1]) + f" and {some[-1]}"
            pairs.append((schema.plural.format(k=asked), ", ".join(values[key] for key in some)))
        return Scene(self._scatter(rng, facts, budget), pairs)

    def update(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """Values change over the text; the question asks for a key's latest value."""
        schema = rng.choice(SCHEMAS)
        most = max(2, min(10, budget // 60))
        keys = _distinct(rng, schema.key, rng.randint(2, max(2, most)))
        values: dict[str, str] = {}
        facts = []
        for number in range(len(keys) + rng.randint(1, 2 * len(keys))):
            key = keys[number] if number < len(keys) else rng.choice(keys)
            values[key] = schema.value(rng)
            facts += self._facts(rng, schema, [key], [values[key]], True)
        pairs = _ask(rng, schema, keys, [values[key] for key in keys], turns)
        lead = rng.choice(
            ("Later facts replace earlier ones. ", "Use the latest value. ", "Only the last value counts. ")
        )
        return Scene(self._scatter(rng, facts, budget), [(lead + q, a) for q, a in pairs])

    def tracking(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """Chains of assignments, one to three hops; the question asks for a variable's value."""
        names = _distinct(rng, lambda r: f"{r.choice('ABCDEFGHKLMNPRSTVXYZ')}{r.randint(0, 9)}", 40)
        chains: list[list[str]] = []
        first, link = rng.choice(
            (("VAR {k} = {v}", "VAR {k} = VAR {v}"), ("Let {k} be {v}.", "Let {k} be the same as {v}."))
        )
        queues = []
        values = []
        for _ in range(rng.randint(2, max(2, min(4, budget // 150)))):
            chain = [names.pop() for _ in range(rng.randint(2, 4))]
            value = str(rng.randint(100, 99999))
            queues.append([first.format(k=chain[0], v=value)])
            queues[-1] += [link.format(k=b, v=a) for a, b in pairwise(chain)]
            chains.append(chain)
            values.append(value)
        facts = []
        while any(queues):
            facts.append(rng.choice([q for q in queues if q]).pop(0))
        asks = ("What is the value of {k}?", "Which value does {k} have?", "Tell me the value of {k}.")
        pool = [(name, values[i]) for i, chain in enumerate(chains) for name in chain[1:]]
        picked = rng.sample(pool, min(turns, len(pool)))
        return Scene(self._scatter(rng, facts, budget), [(rng.choice(asks).format(k=k), v) for k, v in picked])

    def _list_shape(self, rng: random.Random, budget: int) -> tuple[str, int]:
        """What stands between the words of a list, and how many words make about ``budget`` tokens."""
        between = rng.choice((" ", ", ", "\n"))
        cost = self.count(between.join(rng.sample(NOUNS, 50))) / 50
        return between, int(budget / cost)

    @staticmethod
    def _word_list(rng: random.Random, between: str, number: int, counts: dict[str, int]) -> str:
        """The counted words among ``number`` words in all (or a few more), shuffled."""
        others = [w for w in NOUNS if w not in counts]
        words = [w for w, n in counts.items() for _ in range(n)]
        words += [rng.choice(others) for _ in range(number - len(words))]
        rng.shuffle(words)
        return between.join(words)

    def count_words(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """A list of words; the question asks how often one of them (1 to 5 times) stands there."""
        counts = {w: rng.randint(1, 5) for w in rng.sample(NOUNS, rng.randint(1, 3))}
        asks = (
            "How many times does the word {k} appear?",
            "How often does {k} stand in the list?",
            "Count the word {k} in the list. Answer with a number.",
        )
        picked = rng.sample(list(counts), min(turns, len(counts)))
        text = self._word_list(rng, *self._list_shape(rng, budget), counts)
        return Scene(text, [(rng.choice(asks).format(k=k), str(counts[k])) for k in picked])

    def common(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """A list of words; the question asks for the most frequent one, every fifth to every fifteenth word."""
        between, number = self._list_shape(rng, budget)
        most = max(4, int(number / rng.uniform(5, 15)))
        first, *rivals = rng.sample(NOUNS, rng.randint(3, 6))
        counts = {first: most} | {w: rng.randint(1, max(1, 7 * most // 10)) for w in rivals}
        asks = (
            "Which word is the most common in the list?",
            "What is the most frequent word?",
            "Which word appears most often?",
        )
        return Scene(self._word_list(rng, between, number, counts), [(rng.choice(asks), first)])

    def repeat(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """Lines of random words and numbers; asks to repeat the line after a given word (training only)."""
        number = max(2, min(30, budget // 14))

        def line() -> str:
            return " ".join(
                rng.choice((rng.choice(NOUNS), str(rng.randint(10, 999)))) for _ in range(rng.randint(2, 5))
            )

        lines = {word: line() for word in rng.sample(NOUNS, number)}
        facts = [f"{w}: {line}" for w, line in lines.items()]
        picked = rng.sample(list(lines), min(turns, number))
        ask = rng.choice(
            ("Repeat the line after {k}.", "What stands after {k}?", "Copy the line that starts with {k}.")
        )
        return Scene(self._scatter(rng, facts, budget, lines=True), [(ask.format(k=k), lines[k]) for k in picked])

    def passage(self, rng: random.Random, budget: int, turns: int) -> Scene:
        """A short passage with questions whose answers stand in it (training only)."""
        if not self.questions:
            return self.needle(rng, min(budget, 200), turns)
        row = rng.choice(self.questions)
        return Scene(row["text"], [tuple(p) for p in rng.sample(row["pairs"], min(turns, len(row["pairs"])))])

    def _notes(self, rng: random.Random, budget: int, turns: int) -> list[Message]:
        """Facts told over several turns, each acknowledged, with questions about any earlier one between them."""
        schema = rng.choice(SCHEMAS)
        known: dict[str, str] = {}
        messages: list[Message] = []
        for _ in range(max(2, turns // 2)):
            key, value = schema.key(rng), schema.value(rng)
            known[key] = value
            fact = self._facts(rng, schema, [key], [value], True)
            text = self._scatter(rng, fact, budget // max(2, turns // 2) - 40)
            lead = rng.choice(("Remember this: ", "Please note: ", "Another fact: ", ""))
            messages += _turn(lead + text, rng.choice(("Noted.", "OK.", "I will remember that.")))
            asked = rng.choice(list(known))
            messages += _turn(rng.choice(schema.asks).format(k=asked), known[asked])
        return messages

    def _chat(self, rng: random.Random, task: str, turns: int) -> list[Message]:
        """Small talk, or a request for a sentence with a given word, answered from the filler sentences."""
        messages: list[Message] = []
        for _ in range(min(turns, 3)):
            if task == "sentence" and len(self.filler) > 1:
                answer = rng.choice(self.filler)
                words = [w.strip(".,()\"'") for w in answer.split() if len(w) > 5 and w.isalpha()] or [
                    rng.choice(NAMES)
                ]
                ask = rng.choice(
                    ("Write a sentence with the word {k}.", "Use {k} in a sentence.", "Tell me something about {k}.")
                )
                messages += _turn(ask.format(k=rng.choice(words)), answer)
            else:
                asks, answers = rng.choice(CHATS)
                messages += _turn(rng.choice(asks), rng.choice(answers))
        return messages


def _turn(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _ask(rng: random.Random, schema: Schema, keys: list[str], values: list[str], turns: int) -> list[tuple[str, str]]:
    """Questions for up to ``turns`` different keys; one in twelve wants a full sentence, if more than one is asked."""
    pairs = []
    for at in rng.sample(range(len(keys)), min(turns, len(keys))):
        question, answer = rng.choice(schema.asks).format(k=keys[at]), values[at]
        if turns > 1 and rng.random() < 1 / 12:
            question += " Answer in a full sentence."
            answer = schema.full.format(k=keys[at], v=values[at])
        pairs.append((question, answer))
    return pairs


def _conversation(rng: random.Random, scene: Scene) -> list[Message]:
    """Messages of a scene: the context stands in the first user message, before or (one in ten) after its question."""
    question, answer = scene.pairs[0]
    parts = [rng.choice(INTROS)] if rng.random() < 0.5 else []
    parts += [question, scene.context] if rng.random() < 0.1 else [scene.context, question]
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    messages += _turn(rng.choice(("\n", "\n\n")).join(parts), answer)
    for question, answer in scene.pairs[1:]:
        messages += _turn(question, answer)
    return messages


TASKS: dict[str, Callable[[Sampler, random.Random, int, int], Scene]] = {
    "recall": Sampler.recall,
    "needle": Sampler.needle,
    "multikey": Sampler.multikey,
    "multiquery": Sampler.multiquery,
    "update": Sampler.update,
    "tracking": Sampler.tracking,
    "count": Sampler.count_words,
    "common": Sampler.common,
    "repeat": Sampler.repeat,
    "passage": Sampler.passage,
}
SCORED = ("recall", "needle", "multikey", "multiquery", "update", "tracking", "count", "common")
