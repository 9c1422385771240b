"""Run benchmarks by name: ``python -m benchmarks embedded --quick``; without a name, list them."""

import runpy
import sys
from pathlib import Path

NAMES = ("embedded",)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(f"usage: python -m benchmarks {{{','.join(NAMES)}}} [flags]", file=sys.stderr)
        return 2
    script = Path(__file__).with_name(f"{sys.argv[1]}.py")
    sys.argv = [str(script), *sys.argv[2:]]
    runpy.run_path(str(script), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
