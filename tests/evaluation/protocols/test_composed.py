"""The composed protocol on a tiny random model: what is run, scored, compared, taken apart and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdover.chunks import Chunk
from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.chunks.question import Framing
from holdover.evaluation.chunks.recall import questions
from holdover.evaluation.journal import Journal
from holdover.evaluation.protocols.composed.answers import Answer
from holdover.evaluation.protocols.composed.depth import causes, curves
from holdover.evaluation.protocols.composed.design import ALL, FULL, NONE, Arm, Design, Selection
from holdover.evaluation.protocols.composed.problem import ChunkedProblem, drawn, read_chunked
from holdover.evaluation.protocols.composed.run import run_answers, run_layers
from holdover.evaluation.protocols.composed.summary import KL, NLL, PERCENT, RIGHT, Row, summarise
from tests.server import tiny

DESIGN = Design(("epic", "prophetkv"), ("last", "random", "exact", "zero"), (0.3,), (2,))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    loaded = load(str(tiny.save(tmp_path_factory.mktemp("tiny") / "model")))
    # heads that remember more than a chunk: otherwise all states but the empty one would be the last chunk's
    for name, parameter in loaded.host.model.named_parameters():
        if name.endswith("dt_bias"):
            parameter.fill_(-8.0)
    return loaded


@pytest.fixture(scope="module")
def problems(loaded: Loaded) -> list[ChunkedProblem]:
    found = questions(loaded.tokenizer.encode_part, 3, chunks=3, tokens=40)
    return drawn(Framing(loaded.tokenizer, loaded.end_tokens), found, 40)


@pytest.fixture(scope="module")
def answers(loaded: Loaded, problems: list[ChunkedProblem]) -> list[dict[str, Answer]]:
    return [dict(one) for one in run_answers(loaded.host, problems, DESIGN, loaded.end_tokens, Journal(None, {}))]


def test_every_state_meets_the_same_positions(
    loaded: Loaded, problems: list[ChunkedProblem], answers: list[dict[str, Answer]]
) -> None:
    assert [list(one) for one in answers] == [[arm.name for arm in DESIGN.scored]] * 3
    assert len({arm.name for arm in DESIGN.scored}) == 2 + 4 * (1 + 2 + 1)
    for problem, found in zip(problems, answers, strict=True):
        tokens = sum(map(len, problem.case.chunks))
        for selection in DESIGN.selections:
            arms = [found[Arm(selection, initialiser).name] for initialiser in DESIGN.initialisers]
            (share,) = {one.recomputed for one in arms}
            # text stands before the first chunk, so that all three have a seam, and the first one's has one side
            wanted = 2 + 4 + 4 if selection.ratio is None else round(selection.ratio * tokens)
            assert share == pytest.approx(wanted / tokens), selection.name
            # which chunk the random one is may be the last
            assert len({one.nll for one in arms}) >= 3, "two states gave the same"


def test_references_are_what_an_uncached_model_says(
    loaded: Loaded, problems: list[ChunkedProblem], answers: list[dict[str, Answer]]
) -> None:
    with Engine(loaded, EngineOptions(max_running=1)) as engine:
        for problem, found in zip(problems, answers, strict=True):
            case = problem.case
            context = [token for part in case.parts for token in (part.tokens if isinstance(part, Chunk) else part)]
            whole, count = (*context, *case.query, *case.following), len(case.following)
            params = SamplingParams(max_tokens=0, prompt_logprobs=0)
            output = engine.generate([whole], params, use_cache=False)[0]
            assert output.prompt_logprobs is not None
            wanted = -sum(one.logprob for one in output.prompt_logprobs[-count:] if one is not None) / count
            full, everything = found[Arm(FULL).name], found[Arm(ALL).name]
            assert full.nll == pytest.approx(wanted, rel=1e-4)
            assert everything.nll == pytest.approx(wanted, rel=1e-4)
            assert (full.kl, full.recomputed, everything.recomputed) == (0.0, 1.0, 1.0)
            assert everything.kl < 1e-6 < max(one.kl for one in found.values())


def test_an_interrupted_run_goes_on_with_the_next_problem(
    loaded: Loaded, problems: list[ChunkedProblem], answers: list[dict[str, Answer]], tmp_path: Path
) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, {}) as journal:
        steps = run_answers(loaded.host, problems, DESIGN, loaded.end_tokens, journal)
        assert next(steps) == answers[0]
        steps.close()
    lines = path.read_text().splitlines()
    # what is on record is taken as it is, and not run again
    entry = json.loads(lines[1])
    assert entry["key"] == "answers/recall-0"
    entry["value"][Arm(ALL).name]["nll"] = 123.0
    path.write_text(lines[0] + "\n" + json.dumps(entry) + "\n")
    with Journal(path, {}, resume=True) as journal:
        resumed = list(run_answers(loaded.host, problems, DESIGN, loaded.end_tokens, journal))
    assert resumed[0][Arm(ALL).name].nll == 123.0
    assert resumed[1:] == answers[1:]


def test_layers_say_where_the_error_comes_from(loaded: Loaded, problems: list[ChunkedProblem]) -> None:
    errors = list(run_layers(loaded.host, problems, DESIGN, Journal(None, {})))
    found = curves(errors, DESIGN)
    by_arm = {(one.selector, one.initialiser, one.inputs, one.part): one for one in found}
    # nothing and two selectors from four states, and three more compositions; carried and injected of one
    assert len(found) == len(by_arm) == (3 * 4 + 3) * 4 + 2
    exact = by_arm["none", "exact", "isolated", "state"]
    assert (list(exact.layers), exact.worst, exact.rise, exact.count) == ([0], 0, None, 3)
    assert exact.layers[0].low <= exact.layers[0].mean <= exact.layers[0].high
    assert by_arm["none", "exact", "true", "state"].layers[0].mean < 1e-5 < exact.layers[0].mean
    assert by_arm["none", "zero", "isolated", "state"].layers[0].mean == 1.0
    assert {part for *_, part in by_arm} == {"state", "keys", "values", "attended", "carried", "injected"}
    left = {one.inputs: one.left for one in causes(errors, DESIGN)}
    assert left["true"].high < 1e-3
    assert set(left) == {"true", "true-transitions", "true-offsets"}


def test_without_exact_composition_nothing_is_taken_apart(loaded: Loaded, problems: list[ChunkedProblem]) -> None:
    design = Design(("seam",), ("last", "zero"), (0.2,), conv_window="context")
    errors = list(run_layers(loaded.host, problems[:1], design, Journal(None, {})))
    assert {(one.inputs, one.initialiser) for one in curves(errors, design)} == {
        ("isolated", "last"),
        ("isolated", "zero"),
    }
    assert list(causes(errors, design)) == []


def test_percentages_and_paired_differences() -> None:
    design = Design((), ("last", "exact"), ())
    right = {FULL: [1] * 8 + [0] * 2, ALL: [1] * 8 + [0] * 2}
    states = {"last": [1] * 6 + [0] * 4, "exact": [1] * 4 + [0] * 6}
    answers = []
    for i in range(10):
        one = {Arm(at).name: Answer(bool(said[i]), 0.0, 0.0, 1.0) for at, said in right.items()}
        for shift, (state, said) in enumerate(states.items()):
            one[Arm(NONE, state).name] = Answer(bool(said[i]), i + 0.5 * shift, i + 0.25 * shift, 0.0)
        answers.append(one)
    case = Case((Chunk((1,)),), (2,), (3,))
    problems = [ChunkedProblem(str(i), case, "recall") for i in range(10)]
    rows = {(row.selector, row.initialiser, row.metric): row for row in summarise(problems, answers, design)}
    assert len(rows) == 4 * 4
    assert {row.count for row in rows.values()} == {10}
    assert (rows["full", "-", PERCENT].mean, rows["full", "-", PERCENT].low) == (100.0, 100.0)
    last, exact = (rows["none", state, PERCENT] for state in states)
    assert (last.mean, last.difference) == (75.0, None)
    assert (exact.mean, exact.difference) == (50.0, -25.0)
    assert exact.low <= 50 <= exact.high < 100
    assert rows["none", "exact", RIGHT].difference == pytest.approx(-0.2)
    # problems differ much, pairs not at all
    nll, kl = (rows["none", "exact", metric] for metric in (NLL, KL))
    assert (nll.difference_low, nll.difference, nll.difference_high) == pytest.approx((0.5, 0.5, 0.5))
    assert kl.difference == pytest.approx(0.25)
    assert nll.high - nll.low > 1
    nothing = [{arm: Answer(False, 1.0, 0.0, 0.0) for arm in one} for one in answers]
    assert PERCENT not in {row.metric for row in summarise(problems, nothing, design)}


def test_each_task_has_its_rows() -> None:
    design = Design((), ("last",), ())
    answers = [{arm.name: Answer(True, float(i), 0.0, 0.0) for arm in design.scored} for i in range(4)]
    case = Case((Chunk((1,)),), (2,), (3,))
    problems = [ChunkedProblem(str(i), case, "ab"[i % 2]) for i in range(4)]
    found: dict[str, list[Row]] = {}
    for row in summarise(problems, answers, design):
        found.setdefault(row.task, []).append(row)
    means = {task: {row.mean for row in rows if row.metric == NLL} for task, rows in found.items()}
    assert means == {"a": {1.0}, "b": {2.0}}


def test_trends_over_depth() -> None:
    design = Design((), ("last", "exact"), ())
    rising, falling = {"0": 0.1, "2": 0.2, "4": 0.6, "7": 0.4}, {"0": 0.4, "2": 0.3, "4": 0.2, "7": 0.1}
    other = {layer: error / 4 for layer, error in rising.items()}
    parts = [falling, rising, other, other, other]
    errors = [{arm.name: {"state": part} for arm, part in zip(design.compared, parts, strict=True)}] * 3
    last, exact, *_ = curves(errors, design)
    assert (last.worst, exact.worst) == (0, 4)
    assert last.rise is not None
    assert exact.rise is not None
    assert (last.rise.mean, exact.rise.mean) == pytest.approx((-1.0, 0.8))
    found = list(causes(errors, design))
    assert len(found) == 3 * 4
    assert all(one.left.mean == one.left.low == one.left.high == pytest.approx(0.25) for one in found)


def test_designs_that_compare_nothing() -> None:
    with pytest.raises(ConfigError, match="choose among last, random, exact, zero, not last, seams"):
        Design(("epic",), ("last", "seams"), (0.2,))
    with pytest.raises(ConfigError, match="not none"):
        Design(("epic",), (), (0.2,))
    assert Selection("seam", window=4).name != Selection("seam", 4).name


def test_problems_of_a_file(loaded: Loaded, tmp_path: Path) -> None:
    path, framing = tmp_path / "problems.jsonl", Framing(loaded.tokenizer, loaded.end_tokens)
    encode = loaded.tokenizer.encode_part
    texts = ["the cat sat on the mat", "the dog"]
    rows = [
        {"chunks": texts, "question": "who sat?", "answers": ["the cat"], "id": "a", "task": "who"},
        {"chunks": texts, "query": "and", "answers": ["then", "the"]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second = read_chunked(path, framing, 1000)
    rendered = loaded.tokenizer.render([{"role": "user", "content": "".join(texts) + "who sat?"}])
    head, *chunks = first.case.parts
    assert isinstance(head, tuple)
    assert [one.tokens for one in chunks if isinstance(one, Chunk)] == [tuple(encode(text)) for text in texts]
    assert loaded.tokenizer.decode(rendered) == loaded.tokenizer.decode(
        [*head, *(token for one in first.case.chunks for token in one), *first.case.query]
    )
    assert first.case.following == (*encode("the cat"), min(loaded.end_tokens))
    assert (first.id, first.task, second.id, second.task) == ("a", "who", "2", "")
    assert second.case.parts == tuple(Chunk(tuple(encode(text))) for text in texts)
    assert (second.case.query, second.case.following[:-1]) == (tuple(encode("and")), tuple(encode("then")))
    # longer texts are cut, and nothing of them is lost
    (cut, _) = read_chunked(path, framing, 2)
    assert max(map(len, cut.case.chunks)) == 2
    assert [t for c in cut.case.chunks for t in c] == [t for text in texts for t in encode(text)]
    for bad, message in (
        ('{"question": "x", "answers": ["x"]}', "KeyError: 'chunks'"),
        ('{"chunks": "x", "question": "x", "answers": ["x"]}', "chunks: wanted texts"),
        ('{"chunks": ["x", ""], "question": "x", "answers": ["x"]}', "chunks: wanted texts"),
        ('{"chunks": ["x"], "query": "", "answers": ["x"]}', "question or query: wanted texts"),
        ('{"chunks": ["x"], "query": "x", "answers": []}', "answers: wanted texts"),
    ):
        path.write_text(bad)
        with pytest.raises(ConfigError, match=message):
            read_chunked(path, framing, 8)


def test_problems_too_long_are_refused(loaded: Loaded) -> None:
    long = ChunkedProblem("long", Case((Chunk((9,) * 2000),), (9,), (9,)))
    with pytest.raises(ConfigError, match="do not fit into the model's context"):
        list(run_answers(loaded.host, [long], DESIGN, loaded.end_tokens, Journal(None, {})))


def test_likelihood_counts_whichever_token_ends_the_answer(loaded: Loaded, problems: list[ChunkedProblem]) -> None:
    design = Design((), ("last",), ())
    (one,) = run_answers(loaded.host, problems[:1], design, loaded.end_tokens, Journal(None, {}))
    (more,) = run_answers(loaded.host, problems[:1], design, loaded.end_tokens | {5, 6, 7}, Journal(None, {}))
    assert more[Arm(FULL).name].nll < one[Arm(FULL).name].nll
    everything = frozenset(range(loaded.host.layout.vocab_size))
    (certain,) = run_answers(loaded.host, problems[:1], design, everything, Journal(None, {}))
    count = len(problems[0].case.following)
    with Engine(loaded, EngineOptions(max_running=1)) as engine:
        case = problems[0].case
        context = [token for part in case.parts for token in (part.tokens if isinstance(part, Chunk) else part)]
        whole = (*context, *case.query, *case.following[:-1])
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        output = engine.generate([whole], params, use_cache=False)[0]
    assert output.prompt_logprobs is not None
    wanted = -sum(one.logprob for one in output.prompt_logprobs[-count + 1 :] if one is not None) / count
    assert certain[Arm(FULL).name].nll == pytest.approx(wanted, rel=1e-4)
