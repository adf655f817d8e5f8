"""Errors of the HTTP API, in OpenAI's shape."""

from typing import Any


class ApiError(Exception):
    """An answer other than 200: ``status`` and what OpenAI's error object holds.

    ``param`` names the request's field, ``code`` is machine-readable; both may be ``None``.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code, self.kind = message, status, param, code, kind

    def __reduce__(self) -> tuple[Any, ...]:  # keyword arguments survive the way between processes
        return (_rebuild, (self.message, self.status, self.param, self.code, self.kind))

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def _rebuild(message: str, status: int, param: str | None, code: str | None, kind: str) -> ApiError:
    return ApiError(message, status=status, param=param, code=code, kind=kind)


def unknown_model(name: str, known: list[str]) -> ApiError:
    """404, as OpenAI answers it."""
    return ApiError(
        f"The model {name!r} does not exist; this service has {', '.join(known)}.",
        status=404,
        param="model",
        code="model_not_found",
    )


def unavailable(message: str) -> ApiError:
    """503: the same request may succeed when it is sent again."""
    return ApiError(message, status=503, code="service_unavailable", kind="server_error")
