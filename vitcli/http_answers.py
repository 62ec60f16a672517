"""Answers of web servers that are not what was asked for, or would lead a client astray.

Clients take the bytes of any successful answer for the range that they asked for: those of a server that
sends whole files, of a proxy with another range in its cache, of a file that was exchanged meanwhile. And the
Hub's client calls the files of its cache by the entity tags of answers, whatever path these name.
"""

from collections.abc import Mapping
from typing import Any

ETAG, MODIFIED = "ETag", "Last-Modified"
NAMES = (ETAG, "X-Linked-Etag", "X-Repo-Commit")  # which the Hub's client makes paths of


class WrongAnswer(OSError):
    """An answer that is not one to the request."""


def check_range(asked: Mapping[str, str], status: int, stated: Mapping[str, str], stamp: str = "") -> None:
    """Refuse an answer to a request for a range that is not this range of the same file.

    Args:
        asked, stated: the headers of the request and of the answer.
        stamp: entity tag or date of the file that the range belongs to; "" where it is not known.

    Raises:
        WrongAnswer: the bytes are others.
    """
    if "Range" not in asked or status not in (200, 206):
        return
    first = asked["Range"].removeprefix("bytes=").partition("-")[0]
    if status == 200 and first != "0":
        raise WrongAnswer("its server sends whole files or pages, not the parts that are asked for")
    if status == 206 and not stated.get("Content-Range", "").startswith(f"bytes {first}-"):
        raise WrongAnswer("its server sends another part of it than the one that is asked for")
    # A server states one or both of these; the stamp is the first that it stated.
    if stamp and stamp not in (stated.get(ETAG, stamp), stated.get(MODIFIED)):
        raise WrongAnswer("it was exchanged while it was read")


def watch_hub() -> None:
    """Have the Hub's client refuse wrong answers, from now on in this process."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks
    if _check_hub not in hooks["response"]:
        get_session().event_hooks = {**hooks, "response": [*hooks["response"], _check_hub]}


def _check_hub(answer: Any) -> None:
    check_range(answer.request.headers, answer.status_code, answer.headers)
    for name in NAMES:
        if "/" in answer.headers.get(name, "").removeprefix("W/"):
            raise WrongAnswer(f"its {name} is a path")
