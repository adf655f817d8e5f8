"""The playground at ``/``: a static page of plain HTML, CSS and ES modules (serve/page/), no build step.

The page is a client like any other: it asks ``POST /v1/chat/completions`` for a stream with events.
"""

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Nothing but this server's own files and its own API, no inline code, nowhere to send a form, in nobody's frame.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept, but asked for again each time: a new version shows at once, an old one costs a 304.
    "Cache-Control": "no-cache",
}
FOLDER = Path(__file__).resolve().parent / "page"
# Read once: a name that is not here is not served, so no path can leave the folder.
_FILES = {file.name: file.read_bytes() for file in FOLDER.iterdir() if file.suffix in _TYPES}

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """The page."""
    return _answer(request, "index.html")


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def asset(request: Request, name: str) -> Response:
    """A file of the page."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    if name not in _FILES:
        raise HTTPException(404, "Not Found")
    body = _FILES[name]
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": etag}
    # A proxy that compresses weakens the tag: W/"…" still names the same content.
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {etag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=_TYPES[Path(name).suffix], headers=headers)
