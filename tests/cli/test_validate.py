import json
from pathlib import Path

import pytest

from holdover.evaluation.retention.empirical import observe
from holdover.evaluation.retention.prefixes import select_prefixes
from holdover.evaluation.retention.session import Session
from holdover.evaluation.retention.statistics import spearman
from tests.cli.run import error_line, invoke


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"the {i} cats sat on mat {i * i}. " for i in range(60)))
    return path


def options(model: Path, text: Path, *more: str) -> list[str]:
    sizes = ["--prefixes", "4", "--lengths", "64,32", "--threads", "1"]
    return ["validate", str(model), "--text", str(text), *sizes, *more]


def test_json_is_what_direct_computation_gives(model: Path, text: Path) -> None:
    from holdover.engine.hf.loader import load
    from holdover.retention.decay import read_decay

    facts = json.loads(invoke(*options(model, text, "--json", "--wmax", "8")).stdout)
    loaded = load(str(model))
    prefixes = select_prefixes(text, loaded.tokenizer, [64, 32], 4)
    assert [p["tokens"] for p in facts["prefixes"]] == [64, 64, 32, 32]
    assert [p["source"] for p in facts["prefixes"]] == [p.source for p in prefixes]
    assert (facts["model"], facts["a_s"], facts["needle"]) == (str(model), -0.3, [])
    assert loaded.files is not None
    (static,) = read_decay(loaded.files).horizons(-0.3)
    session = Session(loaded.host, 64)
    rhos = sorted(spearman(static, observe(session, p.tokens, 1e-3).horizons[0]) for p in prefixes)
    assert facts["spearman"]["horizons"]["count"] == 4
    assert facts["spearman"]["horizons"]["median"] == pytest.approx((rhos[1] + rhos[2]) / 2)
    assert facts["spearman"]["magnitudes"]["count"] == 4
    judged = facts["calibration"]
    assert judged["used"]["gate_input"] == -0.3
    assert judged["fitted"]["gate_input"] == judged["fit"]["gate_input"]
    assert [c["w_max"] for c in judged["fitted"]["cutoffs"]] == [8]


def test_tables_and_needles(model: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdover.cli.validate._NEEDLE_TOKENS", 20)
    out = invoke(*options(model, text, "--needle", "--examples", "1", "--a-s", "0.5")).stdout
    assert "Spearman over 4 prefixes of 64, 32 tokens, a_s 0.5" in out
    for words in ("H_s, H_e", "H_s, M_S", "wrong side of 512", "baseline", "zero-full-kv", "zero-linear", "zero-both"):
        assert words in out
    assert "5 needle prompts" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--lengths", "100000"], "give a longer text or shorter --lengths"),
        (["--lengths", "64,x"], "--lengths is '64,x'"),
        (["--wmax", "0"], "--wmax is '0'"),
        (["--lengths", "4000", "--prefixes", "1"], "tokens"),
        (["--text", "/nowhere/text.txt"], "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_said(model: Path, text: Path, more: list[str], message: str) -> None:
    result = invoke(*options(model, text, *more))
    assert result.exit_code == 2
    assert message in error_line(result.stderr)
