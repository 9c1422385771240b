"""From a JSON object to a checked request, or to one message that says what is wrong with it."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from holdover.errors import RequestError

Model = TypeVar("Model", bound=BaseModel)

# fields that no answer depends on here
IGNORED = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# fields that are not implemented, with the values that ask for nothing
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": (),
    "suffix": ("",),
    "verbosity": (),
    "web_search_options": (),
}


def parse(model: type[Model], data: dict[str, Any]) -> Model:
    """Check ``data`` against ``model``.

    Raises:
        RequestError: a field is unknown, not supported, missing or of the wrong kind; the message names it.
    """
    known = {name: value for name, value in data.items() if value is not None and name not in IGNORED}
    for name in [name for name in known if name not in model.model_fields]:
        value = known.pop(name)
        if name not in UNSUPPORTED:
            raise RequestError(f"unknown field: {name}", param=name, code="unknown_parameter")
        if value not in UNSUPPORTED[name]:
            neutral = " or ".join(map(repr, UNSUPPORTED[name])) or "null"
            raise RequestError(
                f"{name} is not supported: leave it out or use {neutral}", param=name, code="unsupported_parameter"
            )
    try:
        return model.model_validate(known)
    except ValidationError as error:
        raise _request_error(error) from None


def _request_error(error: ValidationError) -> RequestError:
    errors = error.errors(include_url=False, include_input=False)
    first = errors[0]
    param = ".".join(str(part) for part in first["loc"])
    # a check of our own says what is wrong better than the wrapper around it
    reason = str(first.get("ctx", {}).get("error", "")) or first["msg"]
    more = f" (further problems: {len(errors) - 1})" if len(errors) > 1 else ""
    return RequestError(f"{param}: {reason}{more}", param=param or None)
