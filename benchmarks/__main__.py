"""Run a benchmark by name: ``python -m benchmarks embedded --quick``."""

import sys
from importlib import import_module

NAMES = (
    "attention",
    "chunks",
    "decode",
    "decode_counters",
    "decode_engine",
    "drift",
    "embedded",
    "eviction",
    "page",
    "planning",
    "serve",
    "spill",
    "store",
    "vllm_gpu",
    "vllm_host",
)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(f"usage: python -m benchmarks {{{','.join(NAMES)}}} [flags]", file=sys.stderr)
        return 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"benchmarks {name}"
    code: int = import_module(f"benchmarks.{name}").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
