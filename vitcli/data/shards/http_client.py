"""Requests for ranges over HTTP: silence ends them, and only the range that was asked for is an answer."""

from typing import Any

from vitcli.http_answers import WrongAnswer, check_range, watch_hub

STALL_S = 30.0  # without any byte from the server


def options(url: str) -> dict[str, Any]:
    """Return the options of a URL's file system."""
    if url.startswith(("http://", "https://")):
        return {"get_client": _web_client}
    if url.startswith("hf://"):
        return {"block_size": 2**16}  # by default 5 MB more are read than are asked for
    return {}


def request_options(url: str, stamp: str) -> dict[str, Any]:
    """Return what a request for a range of a file says: the stamp that the file had when it was located."""
    if url.startswith("hf://"):
        watch_hub()
    return {"trace_request_ctx": stamp} if url.startswith(("http://", "https://")) else {}


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
