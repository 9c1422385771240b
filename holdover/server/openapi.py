"""The API's description (OpenAPI): of what routes say of themselves, and of the models that bodies are checked by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from holdover import __version__
from holdover.server.answers import Error
from holdover.server.parsing import IGNORED, UNSUPPORTED

Json = dict[str, Any]

DESCRIPTION = "/openapi.json"
_REFERENCE = "#/components/schemas/{model}"
# the number of what may be wrong, by what a route does
_ALWAYS, _BODY, _ADMITTED = (500, 503), (400, 413), (429,)


def operation(
    summary: str,
    answer: type[BaseModel] | None = None,
    *,
    body: type[BaseModel] | None = None,
    events: bool = False,
    media: str | None = None,
    admitted: bool = False,
    errors: Iterable[int] = (),
    parameters: Iterable[Json] = (),
) -> Json:
    """What a route says of itself, as arguments of FastAPI's decorators.

    Args:
        summary: what it does.
        answer: form of its success.
        body: form of the request's body.
        events: whether the answer may be a stream of events instead.
        media: type of an answer that is not JSON.
        admitted: whether it takes one of the limited places.
        errors: statuses that only this route answers with.
        parameters: what may be in the query.
    """
    success: Json = {"description": "Success"} | ({"model": answer} if answer is not None else {})
    others = ["text/event-stream"] * events + [media] * (media is not None)
    if others:
        success["content"] = {one: {"schema": {"type": "string"}} for one in others}
    statuses = {*_ALWAYS, *(_BODY if body is not None else ()), *(_ADMITTED if admitted else ()), *errors}
    extra: Json = {"parameters": list(parameters)} if parameters else {}
    if body is not None:
        content: Json = {"schema": {"$ref": _REFERENCE.format(model=body.__name__)}}
        extra["requestBody"] = {"required": True, "content": {"application/json": content}}
    wrong = {status: {"description": "Refused, or failed", "model": Error} for status in sorted(statuses)}
    return {"summary": summary, "responses": {200: success, **wrong}, "openapi_extra": extra}


def describe(app: FastAPI, bodies: Iterable[type[BaseModel]], *, model: str, public: frozenset[str] | None) -> None:
    """Make the application describe itself.

    Args:
        app: the application; all of its routes are there.
        bodies: forms of the bodies that its routes name.
        model: the model's name.
        public: paths that need no key; None where no path needs one.
    """

    def description() -> Json:
        if app.openapi_schema is None:
            made = get_openapi(title="Holdover", version=__version__, routes=app.routes)
            schemas = made["components"]["schemas"]
            schemas |= _bodies(bodies, model)
            if public is not None:
                _demand_keys(made, public)
            # FastAPI's own errors, which no route of ours answers with
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for one in _operations(made):
                one["responses"].pop("422", None)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]


def _operations(made: Json) -> list[Json]:
    return [one for path in made["paths"].values() for one in path.values()]


def _demand_keys(made: Json, public: frozenset[str]) -> None:
    made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    refused = {
        "description": "No key, or none of this server's",
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
    }
    for path, operations in made["paths"].items():
        if path not in public:
            for one in operations.values():
                one["security"] = [{"key": []}]
                one["responses"]["401"] = refused


def _bodies(bodies: Iterable[type[BaseModel]], model: str) -> Json:
    """Schemas of the bodies, as `parsing.parse` reads them."""
    wanted = list(bodies)
    _, made = models_json_schema([(one, "validation") for one in wanted], ref_template=_REFERENCE)
    schemas: Json = made["$defs"]
    for one in wanted:
        schema = schemas[one.__name__]
        properties, required = schema["properties"], schema.get("required", [])
        if "model" in properties:
            properties["model"] = {"type": "string", "enum": [model]}
        for name in IGNORED:
            properties.setdefault(name, {})
        for name, neutral in UNSUPPORTED.items():
            properties.setdefault(name, {"enum": [None, *neutral]})
        for name in properties.keys() - set(required):
            properties[name] = _or_null(properties[name])
    return schemas


def _or_null(schema: Json) -> Json:
    # null is the same as leaving a field out; so are defaults that say nothing, in our own form
    stated = {key: value for key, value in schema.items() if key != "default" or value not in (None, [], ())}
    known = stated.get("anyOf", [])
    if not stated or "enum" in stated or {"type": "null"} in known:
        return stated
    return {"anyOf": [*(known or [stated]), {"type": "null"}]}
