"""The OpenAPI page: what it says of keys, headers and bodies beside the schemas of serve/gateway/schemas.py.

A request that follows it is answered, and one that does not is refused, but for what JSON Schema cannot say: numbers
that bound each other, what the served model's vocabulary and context hold, and whether a grammar is one.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Depends
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from ray import serve

from serve.gateway.cors import Cors
from serve.gateway.pace import PacedApp

Schema = dict[str, Any]

#: Only documents that a key is needed; serve/gateway/guard.py checks it.
KEY = [Depends(HTTPBearer(auto_error=False, description="An API key"))]
#: The header of the routes that decode.
TIMEOUT = {
    "name": "X-Request-Timeout",
    "in": "header",
    "required": False,
    "description": "Seconds after which the request fails with 408; at most the service's own limit",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
NULL: Schema = {"type": "null"}


class Application(PacedApp):
    """An application whose page asks for a key where its service does."""

    def build_middleware_stack(self) -> Any:
        """Starlette's, within ours for pages of other origins: they may read a 500 too, which the stack's outermost
        layer writes."""
        return Cors(super().build_middleware_stack())

    def openapi(self) -> Schema:
        """The page."""
        page = super().openapi()
        # Routes belong to the module's application, the configuration to this replica's Gateway.
        return page if serve.get_replica_context().servable_object.needs_keys else without_keys(page)


def without_keys(page: Schema) -> Schema:
    """The page of a service that has no keys."""
    paths = {
        path: {method: _without(operation, "security") for method, operation in operations.items()}
        for path, operations in page["paths"].items()
    }
    return {**page, "paths": paths, "components": _without(page["components"], "securitySchemes")}


def body_of(model: type[BaseModel], *parameters: Schema) -> Schema:
    """The OpenAPI description of a body that the route reads itself, and of the route's ``parameters``."""
    schema = model.model_json_schema()
    inline = _inlined(schema, schema.pop("$defs", {}))
    or_null(inline)
    content = {"application/json": {"schema": inline}}
    return {"parameters": list(parameters), "requestBody": {"required": True, "content": content}}


# -- json_schema_extra of the bodies' models -----------------------------------------------------------------


def or_null(schema: Schema) -> None:
    """Lets each member of an object that may be left out be null, too: then it was not given."""
    for name, member in schema["properties"].items():
        if name not in schema.get("required", ()) and NULL not in member.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [member, NULL]}


def described(
    *rules: Schema, no_effect: Mapping[str, tuple[Any, ...]] | None = None
) -> Callable[[Schema], None]:
    """Adds rules between the members of an object, and members that may only have a value which asks for nothing."""

    def extend(schema: Schema) -> None:
        for name, values in (no_effect or {}).items():
            schema["properties"][name] = {
                "enum": [*values, None],
                "description": "accepted where it asks for nothing",
            }
        if rules:
            schema["allOf"] = list(rules)

    return extend


def exactly_one(types: Mapping[str, str | list[str]]) -> Schema:
    """Objects that have one of the members, of its type (or types) in JSON; the others are left out or null."""
    left_out = dict.fromkeys(types, NULL)
    return {
        "anyOf": [
            {"properties": {**left_out, name: {"type": kind}}, "required": [name]}
            for name, kind in types.items()
        ]
    }


def only_with(name: str, **others: Schema) -> Schema:
    """Objects whose member ``name`` is true, or whose other members follow ``others``."""
    is_true = {"properties": {name: {"const": True}}, "required": [name]}
    return {"anyOf": [is_true, {"properties": others}]}


def _without(members: Schema, name: str) -> Schema:
    return {key: value for key, value in members.items() if key != name}


def _inlined(schema: Any, definitions: Schema) -> Any:
    """Inline a JSON schema's references: inside an OpenAPI document they would not resolve."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # A discriminator's mapping is references too.
    kept = {key: value for key, value in schema.items() if key not in ("$ref", "discriminator")}
    rest = {key: _inlined(value, definitions) for key, value in kept.items()}
    if "$ref" in schema:
        return {**_inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions), **rest}
    return rest
