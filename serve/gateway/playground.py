"""Serves the playground at ``/``: plain HTML, CSS and ES modules (serve/gateway/page/), without a build step.

The page is a client like any other: it sends ``POST /v1/chat/completions`` and reads a stream with events.
"""

import mimetypes
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.staticfiles import StaticFiles

# Python 3.11's own table, and that of some systems, says application/javascript.
mimetypes.add_type("text/javascript", ".js")

#: Allow this server's own files and API only: no inline code, no forms, no framing by other pages.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Browsers revalidate each time: a new version shows at once, an unchanged file costs a 304.
    "Cache-Control": "no-cache",
}


class _Page(StaticFiles):
    """Starlette's static files (types, ETag, 304, no path out of the folder) with our headers."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


_FILES = _Page(directory=Path(__file__).resolve().parent / "page")
router = APIRouter(include_in_schema=False)


# Routes rather than a mount: metrics count responses by the template of their route.
@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """The page."""
    return await _FILES.get_response("index.html", request.scope)


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def asset(request: Request, name: str) -> Response:
    """A file of the page."""
    return await _FILES.get_response(name, request.scope)
