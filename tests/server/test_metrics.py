from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.server.live import Live, running


def scrape(server: Live) -> dict[str, float]:
    response = server.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(response.text):
        assert family.name.startswith("holdover_"), family.name
        for sample in family.samples:
            found[sample.name + "".join(f",{k}={v}" for k, v in sorted(sample.labels.items()))] = sample.value
    return found


def test_requests_and_tokens_are_counted(server: Live) -> None:
    before = scrape(server)
    whole = server.complete("the cat sat on the mat " * 20, max_tokens=5)
    streamed = list(server.complete("the cat sat on the mat " * 20, max_tokens=5, stream=True))
    assert server.http.post("/v1/completions", json={}).status_code == 400
    after = scrape(server)

    def grown(name: str) -> float:
        return after[name] - before[name]

    prompt, hit = whole.usage.prompt_tokens, streamed[-1].model_extra["holdover"]["cache"]["state_depth"]
    assert hit > 0
    assert grown("holdover_prompt_tokens_total") == 2 * prompt
    assert grown("holdover_hit_tokens_total") == hit
    assert grown("holdover_generated_tokens_total") == 10
    assert grown("holdover_requests_total,outcome=length") == 2
    assert grown("holdover_requests_total,outcome=rejected") == 1
    assert grown("holdover_forwards_total,kind=decode") >= 8
    assert grown("holdover_checkpoints_published_total") > 0
    for histogram in ("time_to_first_token_seconds", "time_per_output_token_seconds", "request_seconds"):
        assert grown(f"holdover_{histogram}_count") == 2
    assert grown("holdover_request_prompt_tokens_sum") == 2 * prompt


def test_pools_add_up(server: Live) -> None:
    server.complete("the cat", max_tokens=3)
    found = scrape(server)
    for pool, of in (("state_slots", ",tier=native"), ("kv_rows", "")):
        parts = [found[f"holdover_{pool},state={state}{of}"] for state in ("free", "cached", "locked")]
        assert sum(parts) == found[f"holdover_{pool}_capacity{of}"]
        assert (parts[1] > 0, parts[2]) == (True, 0)
    cache = server.engine.engine.core.cache
    assert found["holdover_pool_bytes,pool=state"] == cache.tiers.native.pool.nbytes
    assert found["holdover_pool_bytes,pool=kv"] == cache.kv.nbytes
    assert found["holdover_requests_running"] == found["holdover_requests_waiting"] == 0
    assert found["holdover_engine_up"] == 1


def test_evictions_and_aborts_are_counted(server: Live) -> None:
    before = scrape(server)
    for number in range(server.on_engine(lambda core: core.cache.tiers.native.pool.num_slots) + 1):
        server.complete(f"{number} cats", max_tokens=1)
    with server.complete("the cat", max_tokens=900, stream=True) as stream:
        next(iter(stream))
    server.settle()
    after = scrape(server)
    assert after["holdover_states_evicted_total"] > before["holdover_states_evicted_total"]
    assert after["holdover_requests_total,outcome=abort"] == before["holdover_requests_total,outcome=abort"] + 1


def test_models_and_health(server: Live) -> None:
    listed = server.openai.models.list().data
    assert [(model.id, model.object, model.owned_by) for model in listed] == [("tiny-gdn", "model", "holdover")]
    assert server.openai.models.retrieve("tiny-gdn") == listed[0]
    assert server.http.get("/health").json() == {"status": "ok"}


def test_decode_and_drafts_are_counted(model: Path) -> None:
    with running(model, speculate="ngram", draft_tokens=2, merge_interval=4, state_budget=2**20) as server:
        before = scrape(server)
        for name in ("folds", "graph_replays", "draft_verifications", "draft_tokens", "draft_tokens_accepted"):
            assert before[f"holdover_{name}_total"] == 0
        # the second time it resumes before its last token, whose like occurred before
        for _ in range(2):
            whole = server.complete("the cat, the cat, the cat,", max_tokens=12)
        after, decoder = scrape(server), server.engine.engine.core.runner.decoder
        server.check()
    assert whole.usage.completion_tokens == 12
    forwards = {kind: after[f"holdover_decode_forwards_total,advance={kind}"] for kind in decoder.stats.forwards}
    assert forwards == decoder.stats.forwards
    assert (forwards["dense"], forwards["draft"] > 0) == (0, True)
    assert sum(forwards.values()) == after["holdover_forwards_total,kind=decode"]
    assert after["holdover_draft_verifications_total"] == forwards["draft"]
    drafted, accepted = (after[f"holdover_{name}_total"] for name in ("draft_tokens", "draft_tokens_accepted"))
    assert forwards["draft"] <= drafted <= 2 * forwards["draft"]
    assert 0 <= accepted <= drafted
    # what no forward was needed for
    assert after["holdover_generated_tokens_total"] == 24
    assert after["holdover_folds_total"] > 0
    assert after["holdover_phases_max"] == 1
    assert after["holdover_pool_bytes,pool=decode"] == 0


def test_without_a_log_there_is_nothing_to_count(server: Live) -> None:
    assert not any("draft" in name or "decode_forwards" in name for name in scrape(server))
