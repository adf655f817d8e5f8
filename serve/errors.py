"""Errors of the HTTP API, in OpenAI's shape."""

from functools import partial
from typing import Any


class ApiError(Exception):
    """Raise it to answer a request with an error: HTTP ``status``, and the fields of OpenAI's error object.

    ``param`` names the request's field, ``code`` is machine-readable; both may be ``None``. A field that is refused
    with 400 has an ``invalid_value`` unless ``code`` says more. ``headers`` are sent with it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        if code is None and status == 400 and param is not None:
            code = "invalid_value"
        self.message, self.status, self.param, self.code, self.kind = message, status, param, code, kind
        self.headers = headers or {}

    def __reduce__(self) -> tuple[Any, ...]:  # pickled with its keyword arguments
        fields = {name: getattr(self, name) for name in ("status", "param", "code", "kind", "headers")}
        return partial(ApiError, **fields), (self.message,)

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def unknown_model(name: str, known: list[str]) -> ApiError:
    """404: no such model."""
    shown = name if len(name) <= 60 else f"{name[:59]}…"
    return ApiError(
        f"The model {shown!r} does not exist; this service has {', '.join(known)}.",
        status=404,
        param="model",
        code="model_not_found",
    )


def failed() -> ApiError:
    """500: the service failed."""
    return ApiError("The server had an error while processing your request.", status=500, kind="server_error")


def unavailable(message: str, retry_after_s: int | None = None) -> ApiError:
    """503: the client may send the same request again."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return ApiError(message, status=503, code="service_unavailable", kind="server_error", headers=headers)


def overloaded(
    message: str = "The service is at capacity; try again later.", retry_after_s: int = 1
) -> ApiError:
    """429: the service is at capacity."""
    return _too_many(message, "overloaded", retry_after_s)


def rate_limited(message: str, retry_after_s: int) -> ApiError:
    """429: this key has used up its limit."""
    return _too_many(message, "rate_limit_exceeded", retry_after_s)


def _too_many(message: str, code: str, retry_after_s: int) -> ApiError:
    headers = {"Retry-After": str(retry_after_s)}
    return ApiError(message, status=429, code=code, kind="rate_limit_error", headers=headers)


def timed_out(message: str) -> ApiError:
    """408: a deadline has passed. The header keeps OpenAI's clients from sending the request twice more, in vain."""
    headers = {"x-should-retry": "false"}
    return ApiError(message, status=408, code="timeout", kind="timeout_error", headers=headers)


def unauthorized(message: str) -> ApiError:
    """401: no valid API key."""
    return ApiError(message, status=401, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
