"""Log lines as text or as JSON, each with the id of the request that it is about."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

from holdover.engine.origin import origin_of

LogFormat = Literal["text", "json"]


class TextFormatter(logging.Formatter):
    """``time level logger [request] message``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s [%(request)s] %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        record.request = origin_of(record) or "-"
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line: whatever a message quotes, it stays one."""
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The object; tracebacks are in it."""
        body = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "request": origin_of(record),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body, ensure_ascii=False, default=str)


def configure(level: str, form: LogFormat) -> None:
    """Send every logger of this process to stderr, in one form."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
