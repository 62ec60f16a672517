"""The page of `vit label` on the local host: images, state and clicks, for whoever has the address.

The address holds a token, without which nothing is answered. Requests of pages from elsewhere are refused by
the headers that a browser sends, and names reach the page as JSON alone.
"""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from pathlib import Path

from vitcli.data import loader
from vitcli.data.split import Split
from vitcli.errors import MachineError, VitError
from vitcli.io.files import parse_json
from vitcli.output import html
from vitcli.report.server import HTML, PageRequest, Reply, serve_replies
from vitcli.teaching.labelling import Labelling

MOST_BODY_BYTES = 2**14  # of a click
SIDES = {"image": 1_280, "small": 160}  # pixels
PAGE = Path(__file__).with_name("label_page.html")
SAME_SITE = {None, "none", "same-origin"}  # of Sec-Fetch-Site, which old browsers do not send
GONE = Reply(b"there is nothing here\n", code=404)
REFUSED = Reply(b"this page is for whoever has its whole address\n", code=403)


def serve(session: Labelling, images: Split, *, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C, which raises KeyboardInterrupt; arguments as of `serve_replies`."""
    root, (page, policy) = f"/{secrets.token_urlsafe(16)}/", _page()

    def reply(request: PageRequest) -> Reply:
        given, path = request.path[: len(root)], request.path[len(root) :]
        if not hmac.compare_digest(given.encode(), root.encode()):
            return REFUSED
        if not path:
            return Reply(page, HTML, policy=policy)
        if not _is_of_page(request):
            return REFUSED
        match request.method, path.split("/"):
            case "POST", ["click"]:
                return _click(session, request)
            case "GET", ["state"]:
                return _json(session.state())
            case "GET", ["next"]:
                return _json(session.look_ahead())
            case "GET", ["outlook"]:
                return _json(session.outlook())
            case "GET", ["image" | "small" as size, row] if row.isdecimal() and len(row) < 10:
                return _image(images, int(row), SIDES[size])
        return GONE

    def announce(address: str) -> None:
        ready(address.rstrip("/") + root)

    serve_replies(reply, port=port, ready=announce, most_body_bytes=MOST_BODY_BYTES)


def _is_of_page(request: PageRequest) -> bool:
    """Return whether the page itself asks, and not one of another origin."""
    host, origin = request.headers.get("Host"), request.headers.get("Origin")
    is_same = request.headers.get("Sec-Fetch-Site") in SAME_SITE
    is_json = request.method != "POST" or request.headers.get("Content-Type") == "application/json"
    return is_same and is_json and origin in (None, f"http://{host}")


def _click(session: Labelling, request: PageRequest) -> Reply:
    try:
        click = parse_json(request.body)
        return _json(session.click(click)) if isinstance(click, dict) else Reply(b"no object\n", code=400)
    except VitError as error:
        return Reply(
            f"{error.message}; {error.fix}".encode(), code=507 if isinstance(error, MachineError) else 400
        )
    except ValueError:
        return Reply(b"no JSON\n", code=400)


def _json(value: object) -> Reply:
    return Reply(json.dumps(value).encode(), "application/json")


def _image(images: Split, row: int, side: int) -> Reply:
    """Return an image as a JPEG, whatever its file is: what a browser gets are pixels alone."""
    try:
        image_HWC, _ = loader.read_example(images, row)
    except (IndexError, VitError):  # it has gone since the start
        return GONE
    return Reply(base64.b64decode(html.thumbnail(image_HWC, side=side)), "image/jpeg")


def _page() -> tuple[bytes, str]:
    """Return the page, and the policy by which nothing runs but its script."""
    script = PAGE.with_suffix(".js").read_text(encoding="utf-8")
    style = html.STYLE.read_text(encoding="utf-8") + PAGE.with_suffix(".css").read_text(encoding="utf-8")
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{digests[0]}'; style-src 'sha256-{digests[1]}'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    text = PAGE.read_text(encoding="utf-8").replace("STYLE", style).replace("SCRIPT", script)
    return text.encode(), policy
