"""Errors as OpenAI's API words them: a status and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from holdover.errors import CapacityError, EngineClosedError, HoldoverError, RequestError

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
        headers: of the response, beside the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @classmethod
    def later(cls, status: int, message: str, *, code: str, seconds: int) -> ApiError:
        """A refusal that need not last: the client may ask again after some seconds."""
        return cls(status, message, code=code, headers={"retry-after": str(max(1, seconds))})

    @property
    def body(self) -> dict[str, Any]:
        """The response's body."""
        return {"error": {"message": str(self), "type": self._kind, "param": self.param, "code": self.code}}

    @property
    def _kind(self) -> str:
        if self.status >= 500:
            return "server_error"
        return "rate_limit_error" if self.status == 429 else "invalid_request_error"


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """How a client hears of ``error``. One that nobody raised on purpose is logged and not quoted."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, EngineClosedError):
        return ApiError.later(503, "the server is shutting down: ask again when it is back", code="draining", seconds=1)
    if isinstance(error, CapacityError):
        return ApiError.later(503, str(error), code="no_capacity", seconds=1)
    if isinstance(error, HoldoverError):
        logger.error("request %s failed: %s", request_id, error)
        return ApiError(500, str(error), code="engine_error")
    logger.error("request %s failed", request_id, exc_info=error)
    return ApiError(500, f"internal error; the server's log says more of request {request_id}", code="internal_error")
