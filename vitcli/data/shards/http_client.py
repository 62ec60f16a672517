"""Requests for ranges over HTTP: silence ends them, and only the range that was asked for is an answer.

fsspec and the Hub's client take the bytes of any successful answer for the range: those of a server that
sends whole files, of a proxy with another range in its cache, of a file that was exchanged meanwhile.
"""

from collections.abc import Mapping
from typing import Any

STALL_S = 30.0  # without any byte from the server
ETAG, MODIFIED = "ETag", "Last-Modified"


class WrongAnswer(OSError):
    """An answer that is not the range that was asked for."""


def options(url: str) -> dict[str, Any]:
    """Return the options of a URL's file system."""
    if url.startswith(("http://", "https://")):
        return {"get_client": _web_client}
    if url.startswith("hf://"):
        _watch_hub()
        return {"block_size": 2**16}  # by default 5 MB more are read than are asked for
    return {}


def request_options(url: str, stamp: str) -> dict[str, Any]:
    """Return what a request for a range of a file says: the stamp that the file had when it was located."""
    return {"trace_request_ctx": stamp} if url.startswith(("http://", "https://")) else {}


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


def in_words(error: BaseException) -> str | None:
    """Return what went wrong with a request, in words, for errors of aiohttp that say little."""
    match type(error).__name__:
        case "FSTimeoutError" | "SocketTimeoutError" | "ServerTimeoutError" | "ConnectionTimeoutError":
            return f"its server has sent nothing for {STALL_S:g} s"
        case "ClientPayloadError":
            return "the connection ended in the middle"
        case "TooManyRedirects":
            return "its server redirects in a circle"
        case "ClientResponseError":
            return f"its server answers with status {getattr(error, 'status', '?')}"
    return None


async def _web_client(loop: Any = None, **settings: Any) -> Any:
    """Return a client for fsspec's file system of http:// and https://."""
    import aiohttp

    async def check(session: Any, context: Any, answered: Any) -> None:
        try:
            stamp = context.trace_request_ctx or ""
            check_range(answered.headers, answered.response.status, answered.response.headers, stamp)
        except WrongAnswer:
            answered.response.close()
            raise

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(check)
    return aiohttp.ClientSession(
        loop=loop,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=STALL_S, sock_read=STALL_S),
        trace_configs=[trace],
        headers={"Accept-Encoding": "identity"},  # a part of a compressed file is no part of the file
        **settings,
    )


def _watch_hub() -> None:
    """Have the Hub's client check its answers."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks
    if _check_hub not in hooks["response"]:
        get_session().event_hooks = {**hooks, "response": [*hooks["response"], _check_hub]}


def _check_hub(answer: Any) -> None:
    check_range(answer.request.headers, answer.status_code, answer.headers)
