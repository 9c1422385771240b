"""The papers' evaluations by name: what `holdover eval --preset` sets of its own options, unless they are given."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdover.errors import ConfigError
from holdover.evaluation.passages import MODULE, REQUIREMENT

Option = str | int | float | bool
# of lm-eval, by the paper's names: S, MK, MV, MQ, VT, CWE, FWE and QA (RULER)
_RULER = (
    "niah_single_1,niah_single_2,niah_single_3,niah_multikey_1,niah_multikey_2,niah_multikey_3,niah_multivalue,"
    "niah_multiquery,ruler_vt,ruler_cwe,ruler_fwe,ruler_qa_squad,ruler_qa_hotpot"
)
# one each of those that LinearKV reports
_RULER_EIGHT = (
    "niah_single_1,niah_multikey_1,niah_multivalue,niah_multiquery,ruler_vt,ruler_cwe,ruler_fwe,ruler_qa_squad"
)
_ARMS: Mapping[str, Option] = {"arms": "dense,nr,random", "w_max": "16,64,128"}
_LM_EVAL = {"lm_eval": "'holdover[eval]'"}
_LONGBENCH = {**_LM_EVAL, **dict.fromkeys(("jieba", "fuzzywuzzy", "rouge"), "'lm-eval[longbench]'")}
_GENERATED = {**_LM_EVAL, **dict.fromkeys(("nltk", "scipy", "wonderwords"), "'lm-eval[ruler]'")}
_PASSAGES = {MODULE: REQUIREMENT}


@dataclass(frozen=True)
class Preset:
    """One evaluation.

    Attributes:
        source: where a paper describes it.
        options: of `holdover eval`, by the names of its parameters.
        packages: what pip must have installed for it, by the module that shows whether it has.
        differs: in what the paper does otherwise; empty where nothing is known.
        problems: what the file of ``--problems`` must hold; empty where none is needed.
    """

    source: str
    options: Mapping[str, Option]
    packages: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""
    problems: str = ""


def _harness(source: str, packages: Mapping[str, str], differs: str = "", **options: Option) -> Preset:
    return Preset(source, {"protocol": "harness", **options}, packages, differs)


def _sampled(count: int, replays: int, what: str) -> Preset:
    """One of DASC's sets of problems that are answered by reasoning, sampled at temperature 1."""
    options = {"protocol": "warm-replay", "limit": count, "replays": replays, "temperature": 1.0, **_ARMS}
    return Preset("DASC App. C.2", options, problems=f"{count} problems of {what}, with the metric boxed")


_ONCE = "replays {} times at temperature 1; the harness asks once, greedily"
PRESETS: Mapping[str, Preset] = {
    "longbench-qa": _harness(
        "LinearKV §4.1",
        _LONGBENCH,
        tasks="longbench_hotpotqa,longbench_2wikimqa,longbench_musique,longbench_narrativeqa,longbench_qasper",
        limit=200,
    ),
    "longbench-summaries": _harness(
        "LinearKV §4.1", _LONGBENCH, tasks="longbench_qmsum,longbench_gov_report,longbench_multi_news", limit=100
    ),
    "ruler": _harness(
        "DASC §5.1, §5.2",
        _GENERATED,
        "replays three times; the harness asks once",
        tasks=_RULER,
        limit=30,
        lengths="4096,8192,16384",
        chat=True,
    ),
    "ruler-8": _harness("LinearKV §4.1", _GENERATED, tasks=_RULER_EIGHT, limit=100, lengths="8192", chat=True),
    "mmlu-pro": _harness("DASC App. C.2", _LM_EVAL, _ONCE.format("7"), tasks="mmlu_pro", chat=True),
    "gpqa-diamond": _harness(
        "DASC App. C.2", _LM_EVAL, _ONCE.format("15"), tasks="gpqa_diamond_cot_zeroshot", chat=True
    ),
    "aime-2026": _sampled(30, 31, "AIME 2026, parts I and II"),
    "hmmt-2026-feb": _sampled(33, 31, "HMMT February 2026"),
    "imo-answerbench": _sampled(400, 3, "IMO-AnswerBench"),
    "locomo": Preset(
        "DASC App. C.2",
        {"protocol": "warm-replay", "limit": 1986, "replays": 1, "temperature": 0.0, **_ARMS},
        problems="LoCoMo's 1,986 questions, each behind its serialised conversation, with the metric f1",
    ),
    "hotpotqa": Preset(
        "after LinearKV §4.1", {"protocol": "warm-replay", "problems": "hotpotqa", "limit": 200, **_ARMS}, _PASSAGES
    ),
    "squad": Preset(
        "after LinearKV §4.1", {"protocol": "warm-replay", "problems": "squad", "limit": 200, **_ARMS}, _PASSAGES
    ),
}


def preset(name: str) -> Preset:
    """A preset by its name.

    Raises:
        ConfigError: there is none of this name, or something that it needs is not installed.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; choose among {', '.join(PRESETS)}")
    found = PRESETS[name]
    missing = {module: source for module, source in found.packages.items() if importlib.util.find_spec(module) is None}
    if missing:
        sources = " ".join(dict.fromkeys(missing.values()))
        raise ConfigError(f"preset {name} needs {', '.join(missing)}, not installed here: pip install {sources}")
    return found
