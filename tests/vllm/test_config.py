"""The operator's settings are read strictly."""

from pathlib import Path
from typing import Any

import pytest

from holdover.errors import ConfigError
from holdover.integrations.vllm.config import DecodeConfig, TierConfig, has_tier_settings


def test_settings_are_read() -> None:
    section = {
        "host_budget": 5,
        "spill_dir": "/spill",
        "spill_budget": 7,
        "plan": "/plan",
        "element": "int8",
        "ends": False,
    }
    config = TierConfig.parse({"holdover": section, "of": "others"})
    assert config == TierConfig(5, Path("/spill"), 7, 4, Path("/plan"), "int8", False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, "needs its settings"),
        ({}, "needs its settings"),
        ({"holdover": True}, "needs its settings"),
        ({"holdover": {}}, "host_budget, a spill_dir, or both"),
        ({"holdover": {"host_bugdet": 1}}, "host_bugdet.*known are"),
        ({"holdover": {"host_budget": "4GiB"}}, "host_budget is '4GiB'"),
        ({"holdover": {"host_budget": True}}, "host_budget is True"),
        ({"holdover": {"host_budget": -1}}, "not negative"),
        ({"holdover": {"spill_dir": ""}}, "wanted a path"),
        ({"holdover": {"host_budget": 1, "element": "int4"}}, "full, bfloat16, int8"),
        ({"holdover": {"host_budget": 1, "ends": "no"}}, "wanted true or false"),
    ],
)
def test_what_cannot_be_used_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TierConfig.parse(settings)


@pytest.mark.parametrize(
    ("additional", "config", "tier"),
    [
        ({}, None, False),
        (None, None, False),
        ({"of": "others"}, None, False),
        ({"holdover": {"host_budget": 1}}, None, True),
        ({"holdover": {"decode": {"interval": 8}}}, DecodeConfig(8), False),
        ({"holdover": {"decode": {"interval": 64}, "host_budget": 1}}, DecodeConfig(64), True),
    ],
)
def test_decode_is_asked_for_by_itself(additional: Any, config: DecodeConfig | None, tier: bool) -> None:
    assert DecodeConfig.parse(additional) == config
    assert has_tier_settings(additional) == tier


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (True, "wanted an object"),
        ({"decode": 8}, "decode is 8"),
        ({"decode": {}}, "interval"),
        ({"decode": {"interval": 8, "intervall": 8}}, "unknown settings .'intervall'"),
        *(({"decode": {"interval": value}}, "wanted 2 to 64") for value in (1, 65, 8.0, "8", True, None)),
    ],
)
def test_decode_settings_that_cannot_be_used_are_refused(section: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DecodeConfig.parse({"holdover": section})


def test_the_tier_leaves_decode_alone() -> None:
    assert TierConfig.parse({"holdover": {"host_budget": 5, "decode": {"interval": 8}}}) == TierConfig(5)
