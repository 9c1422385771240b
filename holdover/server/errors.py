"""Errors as OpenAI's API words them: a status and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
from typing import Any

from holdover.errors import HoldoverError, RequestError

logger = logging.getLogger(__name__)

# what proxies log for a client that went away; nobody receives it
CLIENT_GONE = 499


class ClientGoneError(Exception):
    """The client closed its connection before the answer was ready."""


class ApiError(Exception):
    """An answer other than success.

    Args:
        status: HTTP status.
        message: what is wrong and what to do.
        param: the request's field at fault, if one is.
        code: a short stable identifier for programs.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The response's body."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """How a client hears of ``error``. One that nobody raised on purpose is logged and not quoted."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, HoldoverError):
        logger.error("request %s failed: %s", request_id, error)
        return ApiError(500, str(error), code="engine_error")
    logger.error("request %s failed", request_id, exc_info=error)
    return ApiError(500, f"internal error; the server's log says more of request {request_id}", code="internal_error")
