"""``python -m holdover``: the command line."""

from __future__ import annotations

from holdover.cli.main import app

if __name__ == "__main__":
    app(prog_name="holdover")
