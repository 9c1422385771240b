"""Who may ask: without a key nothing is told, and no key is ever written down."""

import logging
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from holdover.errors import ConfigError
from holdover.server.auth import Keys, read_keys
from holdover.server.options import ServerOptions
from tests.server.live import NAME, Live, running
from tests.server.test_errors import error_of

FIRST, SECOND = "sk-first-5up3r", "sk-second-h1dd3n"
BODY = {"model": NAME, "prompt": "the cat", "max_tokens": 2}


@pytest.fixture(scope="module")
def guarded(model: Path) -> Iterator[Live]:
    with running(model, ServerOptions(Keys([FIRST, SECOND])), key=SECOND) as live:
        yield live


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", FIRST, f"Basic {FIRST}", f"Bearer {FIRST}x", f"Bearer {FIRST[:-1]}", "Bearer \xff"],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/v1/nothing", "/v1/chat/completions"])
def test_without_a_key_nothing_is_told(guarded: Live, header: str | None, path: str) -> None:
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    guarded.http.headers.pop("authorization", None)
    try:
        response = guarded.http.request("POST" if "completions" in path else "GET", path, headers=headers, json=BODY)
    finally:
        guarded.http.headers["authorization"] = f"Bearer {SECOND}"
    error = error_of(response)
    assert (response.status_code, error["type"], error["code"]) == (401, "invalid_request_error", "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    assert FIRST[:-1] not in response.text


@pytest.mark.parametrize("header", [f"Bearer {FIRST}", f"bearer {FIRST}", f"BEARER   {SECOND}"])
def test_every_key_opens(guarded: Live, header: str) -> None:
    response = guarded.http.post("/v1/completions", headers={"authorization": header}, json=BODY)
    assert response.status_code == 200, response.text


def test_the_official_client(guarded: Live) -> None:
    assert guarded.complete("the cat").choices[0].text
    with pytest.raises(openai.AuthenticationError) as caught:
        guarded.openai.with_options(api_key="wrong").models.list()
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_probes_need_no_key(guarded: Live, path: str) -> None:
    assert guarded.http.get(path, headers={"authorization": "Bearer wrong"}).status_code == 200


def test_metrics_can_be_guarded(model: Path) -> None:
    with running(model, ServerOptions(Keys([FIRST]), guard_metrics=True), key=FIRST) as server:
        assert server.http.get("/metrics").status_code == 200
        for path, status in (("/metrics", 401), ("/health", 200)):
            assert server.http.get(path, headers={"authorization": "Bearer wrong"}).status_code == status


def test_keys_are_in_no_log(guarded: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.complete("the cat")
    guarded.http.get(f"/v1/models?key={FIRST}")
    guarded.http.get("/v1/models", headers={"authorization": f"Bearer {FIRST}wrong"})
    # the client runs in this process too, and logs what it sends
    ours = [str(vars(record)) for record in caplog.records if record.name.startswith(("holdover", "uvicorn"))]
    assert any("key-2" in line for line in ours)
    assert not any(key in line for line in ours for key in (FIRST, SECOND))


def test_keys_do_not_show_themselves() -> None:
    keys = Keys([FIRST, SECOND, FIRST])
    assert len(keys) == 2
    assert not any(secret in f"{keys!r} {vars(keys)} {ServerOptions(keys)!r}" for secret in (FIRST, SECOND))
    assert [keys.owner(key) for key in (FIRST.encode(), SECOND.encode(), b"", b"sk")] == ["key-1", "key-2", None, None]


@pytest.mark.parametrize("bad", ["", "two words", "schlüssel", "a\n"])
def test_keys_that_cannot_be_sent(bad: str) -> None:
    with pytest.raises(ConfigError, match="API key 2") as caught:
        Keys(["good", bad])
    assert not bad or bad not in str(caught.value)


def test_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{FIRST}\n\n  {SECOND}  \n")
    assert read_keys(file) == [FIRST, SECOND]
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match="holds none"):
        read_keys(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "nowhere")


@pytest.mark.parametrize("options", [{"guard_metrics": True}, {"max_per_key": 2}])
def test_what_needs_keys_says_so(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="API keys"):
        ServerOptions(**options)  # type: ignore[arg-type]
