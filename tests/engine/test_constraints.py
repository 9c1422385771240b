"""Grammars: every text that ends is in the language, however the request is served."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from holdover.engine.constraints import Guidance
from holdover.engine.grammar import Grammar
from holdover.engine.request import Output
from holdover.errors import RequestError
from tests.arch.table import VOCAB
from tests.engine.harness import Bench, prompt_of
from tests.engine.test_speculation import Oracle, speculating

NAME = "small-kimi_linear"
END = VOCAB - 1
# what is not here cannot be written
CHARACTERS = '{}[]":, \n\\abcdefghijklmnopqrstuvwxyz0123456789.-+<>=_/'
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}


class Characters:
    """A tokenizer of one token a character, as a file of the ``tokenizers`` library and as the harness needs it."""

    has_chat_template = False

    def __init__(self) -> None:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        pieces = [byte_level.pre_tokenize_str(character)[0][0] for character in CHARACTERS]
        pieces += [f"unused{i}" for i in range(VOCAB - 1 - len(pieces))]
        self._library = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
        self._library.pre_tokenizer = byte_level
        self._library.decoder = decoders.ByteLevel()
        self._library.add_special_tokens([AddedToken("<|end|>", special=True)])

    @property
    def serialized(self) -> str:
        text: str = self._library.to_str()
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._library.encode(text).ids
        return ids

    def decode(self, ids: Any) -> str:
        text: str = self._library.decode(list(ids))
        return text


def constrained(bench: Bench) -> Bench:
    """The engine with a tokenizer that grammars can be followed over."""
    tokenizer = Characters()
    bench.prepare.tokenizer = tokenizer
    bench.prepare._end_tokens = frozenset([END])
    bench.prepare._constrainer = Guidance(tokenizer, vocab_size=VOCAB, end_tokens=frozenset([END]))
    return bench


def schema(value: object) -> Grammar:
    return Grammar("json", json.dumps(value), "response_format")


REGEX = Grammar("regex", "[a-f]{3,9}-[0-9]{2}")
LARK = Grammar("lark", 'start: item ("," item)*\nitem: "a" | "[" start "]"\n')
KINDS = pytest.mark.parametrize("grammar", [schema(SCHEMA), REGEX, LARK], ids=lambda g: g.kind)
PROMPTS = [prompt_of(length, seed=length, vocab=40) for length in (2, 5, 9)]


def assert_in_language(grammar: Grammar, output: Output) -> None:
    assert output.error is None, output.error
    if output.finish_reason == "length":
        assert grammar.kind == "lark"
        return
    if grammar.kind == "json":
        value = json.loads(output.text)
        assert value.keys() == {"ok", "n"}
        assert isinstance(value["ok"], bool)
        assert 0 <= value["n"] <= 99
    elif grammar.kind == "regex":
        assert re.fullmatch(grammar.text, output.text)
    else:
        assert isinstance(eval(output.text, {"a": "a"}), tuple | str | list)


def serve(bench: Bench, grammar: Grammar, **params: Any) -> list[Output]:
    ids = [bench.add(prompt, 60, grammar=grammar, **params) for prompt in PROMPTS]
    bench.run()
    return [bench.outputs[i] for i in ids]


@KINDS
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_texts_are_in_the_language(grammar: Grammar, seed: int | None) -> None:
    params = {} if seed is None else {"temperature": 1.5, "seed": seed, "top_p": 0.9}
    for output in serve(constrained(Bench(NAME)), grammar, **params):
        assert_in_language(grammar, output)


@KINDS
def test_unfinished_texts_can_be_finished(grammar: Grammar) -> None:
    bench = constrained(Bench(NAME))
    whole = bench.serve(PROMPTS[0], 60, grammar=grammar)
    cut = bench.serve(PROMPTS[0], 3, grammar=grammar)
    assert (cut.finish_reason, cut.token_ids) == ("length", whole.token_ids[:3])


@KINDS
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_what_cannot_go_on_ends(grammar: Grammar, ignore_eos: bool) -> None:
    output = constrained(Bench(NAME)).serve(PROMPTS[1], 60, grammar=grammar, ignore_eos=ignore_eos)
    assert_in_language(grammar, output)
    if grammar.kind != "lark":
        # the last character makes it complete: no further forward is spent on an end token
        assert output.finish_reason == "stop"
        assert END not in output.token_ids


@KINDS
def test_after_preemptions(grammar: Grammar) -> None:
    alone = [constrained(Bench(NAME)).serve(prompt, 60, grammar=grammar).token_ids for prompt in PROMPTS]
    bench = constrained(Bench(NAME, slots=4, rows=70, chunk=4))
    assert [output.token_ids for output in serve(bench, grammar)] == alone
    bench.assert_empty()


def test_preemptions_happen() -> None:
    grammar = Grammar("regex", "[a-z]{40}")
    alone = [constrained(Bench(NAME)).serve(prompt, 60, grammar=grammar).token_ids for prompt in PROMPTS]
    bench = constrained(Bench(NAME, slots=4, rows=70, chunk=4))
    assert [output.token_ids for output in serve(bench, grammar)] == alone
    assert bench.core.stats.preemptions


@KINDS
@pytest.mark.parametrize("right", [1.0, 0.6])
def test_with_drafts(grammar: Grammar, right: float) -> None:
    plain = serve(constrained(Bench(NAME)), grammar)
    bench = constrained(speculating(NAME, Oracle(plain, right=right)))
    assert [output.token_ids for output in serve(bench, grammar)] == [output.token_ids for output in plain]
    assert bench.core.speculator.stats.accepted


def test_penalties_and_biases_choose_within_the_language() -> None:
    bench = constrained(Bench(NAME))
    wanted = bench.prepare.tokenizer.encode("f")[0]
    forbidden = bench.prepare.tokenizer.encode("z")[0]
    output = bench.serve(PROMPTS[0], grammar=REGEX, tokens=60, logit_bias=((wanted, 90.0), (forbidden, 100.0)))
    assert re.fullmatch("f{9}-[0-9]{2}", output.text)


@pytest.mark.parametrize(
    ("grammar", "part"),
    [
        (schema({"type": "strin"}), "strin"),
        (schema({"type": "object", "properties": {"a": {"items": {"type": "nope"}}}}), "at properties.a.items: "),
        (schema({"anyOf": [{"type": "string"}, {"pattern": "(("}]}), "at anyOf.1: "),
        (schema({"$defs": {"x": {"not": {}}}, "$ref": "#/$defs/x"}), "not"),
        (Grammar("regex", "a(b"), "unclosed group"),
        (Grammar("lark", "start: foo"), 'unknown name: "foo"'),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum (5) is greater than maximum (3)"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "cannot be used"),
        (schema({"$ref": "http://127.0.0.1:1/other"}), "does not fetch"),
    ],
)
def test_what_is_wrong_with_a_grammar_is_said(grammar: Grammar, part: str) -> None:
    bench = constrained(Bench(NAME))
    with pytest.raises(RequestError) as caught:
        bench.add(PROMPTS[0], grammar=grammar)
    assert caught.value.param == grammar.param
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"holdover\[structured\]") as caught:
        constrained(Bench(NAME)).add(PROMPTS[0], grammar=REGEX)
    assert caught.value.code == "unsupported_parameter"


def test_forced_tokens_outside_the_language_end_their_request_only() -> None:
    bench = constrained(Bench(NAME))
    bad = bench.add(PROMPTS[0], 60, grammar=REGEX, forced=(bench.prepare.tokenizer.encode("z")[0],))
    good = bench.add(PROMPTS[1], 60, grammar=REGEX)
    bench.run()
    assert "could not be followed" in str(bench.outputs[bad].error)
    assert_in_language(REGEX, bench.outputs[good])
