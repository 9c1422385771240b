"""The page and what it polls."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdover.server.auth import Keys
from holdover.server.options import ServerOptions
from tests.server.live import Live, running
from tests.server.test_cache import LONG


def test_page_asks_nobody_else(server: Live) -> None:
    response = server.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "connect-src 'self'" in response.headers["content-security-policy"]
    assert re.findall(r"https?://|//[a-z]|\bsrc=|@import|innerHTML", response.text) == []
    # readable on a phone
    assert 'content="width=device-width' in response.text


# as much of a document as the script uses; it prints what is shown after the first answer, and leaves
DOCUMENT = """
class Element {
  constructor() { this.children = []; this.style = {}; this.hidden = true; this.own = ""; this.className = ""; }
  set textContent(text) { this.own = text; }
  get text() { return [this.own, ...this.children.map(child => child.text)].join(" "); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute() {}
  addEventListener() {}
  focus() {}
}
const elements = {};
globalThis.document = {
  hidden: false,
  getElementById: id => elements[id] ??= new Element(),
  createElement: tag => Object.assign(new Element(), { tag }),
};
globalThis.sessionStorage = { getItem: () => KEY, setItem() {} };
const real = fetch;
globalThis.fetch = (path, options) => real(URL_OF_PAGE + "/" + path, options);
const later = setTimeout;
globalThis.setTimeout = (work, ...rest) => {
  if (work.name !== "poll") return later(work, ...rest);
  const depth = item => 1 + Math.max(0, ...item.children.slice(1).flatMap(list => list.children).map(depth));
  const shown = Object.fromEntries(Object.entries(elements).map(([id, one]) => [id, [one.text, one.hidden]]));
  const levels = Math.max(0, ...elements.tree?.children.map(depth) ?? []);
  console.log(JSON.stringify({ shown, levels }));
  process.exit(0);
};
"""


def rendered(server: Live, tmp_path: Path, key: str = "") -> tuple[dict[str, tuple[str, bool]], int]:
    """Text of each named part of the page and whether it is hidden, and the levels of the tree."""
    (script,) = re.findall(r"<script>(.*?)</script>", server.http.get("/").text, re.DOTALL)
    file = tmp_path / "page.cjs"
    file.write_text(f"const KEY = {json.dumps(key)}, URL_OF_PAGE = {json.dumps(server.url)};{DOCUMENT}\n{{{script}}}")
    done = subprocess.run(["node", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["shown"], found["levels"]


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js to run the script")


@needs_node
def test_script_shows_what_is_there(server: Live, tmp_path: Path) -> None:
    server.complete("the cat sat on the mat " * 60, max_tokens=1)
    server.complete("the cat sat on the mat " * 60 + "and", max_tokens=1)
    # a look may be a second old: until a fresh one shows both
    while len((now := server.http.get("/v1/status").json())["entries"]) < 2:
        pass
    shown, levels = rendered(server, tmp_path)
    assert shown["main"][1] is False
    assert shown["model"][0] == "tiny-gdn"
    assert shown["state"][0] == "ok; 0 running, 0 waiting"
    assert all(one["id"] in shown["tree"][0] for one in now["entries"])
    assert levels >= 2
    assert now["recent"][0]["reason"] in shown["recent"][0]
    assert "native state slots: 0 in use or pinned" in shown["pools"][0]


@needs_node
def test_script_asks_for_a_key(model: Path, tmp_path: Path) -> None:
    with running(model, ServerOptions(Keys(["mine"])), key="mine") as server:
        shown, _ = rendered(server, tmp_path)
        assert (shown["login"][1], shown["main"][1]) == (False, True)
        shown, _ = rendered(server, tmp_path, key="mine")
        assert (shown["login"][1], shown["main"][1]) == (True, False)


def test_status_is_the_cache_as_it_is(server: Live) -> None:
    server.complete(LONG)
    again = server.complete(LONG)
    # a look may be a second old: until a fresh one shows both
    while (now := server.http.get("/v1/status").json())["entries"] == []:
        pass
    assert (now["status"], now["model"], now["running"], now["waiting"]) == ("ok", "tiny-gdn", 0, 0)
    for pool in now["pools"]:
        assert pool["free"] + pool["cached"] + pool["locked"] == pool["total"]
    assert [pool["name"] for pool in now["pools"]] == ["native state slots", "KV rows"]
    ids = {one["id"] for one in now["entries"]}
    assert len(ids) == now["total"]
    assert {one["parent"] for one in now["entries"]} <= {None, *ids}
    latest = now["recent"][0]
    cache = again.model_extra["holdover"]["cache"]
    assert {name: latest[name] for name in ("state_depth", "kv_depth", "prompt_tokens", "reason")} == {
        name: cache[name] for name in ("state_depth", "kv_depth", "prompt_tokens", "reason")
    }
    assert (latest["tokens"], latest["finish_reason"]) == (12, "length")
    assert not {"text", "prompt", "token_ids"} & latest.keys()


def test_only_the_page_is_public(model: Path) -> None:
    with running(model, ServerOptions(Keys(["mine"])), key="mine") as server:
        wrong = {"authorization": "Bearer wrong"}
        assert server.http.get("/", headers=wrong).status_code == 200
        assert server.http.get("/v1/status", headers=wrong).status_code == 401
        assert server.http.get("/v1/status").status_code == 200
