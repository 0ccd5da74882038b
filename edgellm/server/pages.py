"""The page to chat on, and the description of the API: files inside the package, known by name."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from edgellm.server.context import Context
from edgellm.server.errors import not_found

KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
FILES = ("index.html", "page.css", "page.js", "markdown.js")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The browser fetches nothing from anywhere else, whatever a model writes."""


async def page(request: Request) -> Response:
    """A file of the page; `/` is index.html."""
    name = request.url.path.rpartition("/")[2] or "index.html"
    if not Context.of(request).settings.page or name not in FILES:
        raise not_found("there is no page here: the server was started with --no-ui")
    data = (files(__package__) / "page" / name).read_bytes()
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(data, media_type=KINDS[name.rpartition(".")[2]], headers=headers)
