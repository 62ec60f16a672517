"""HTTP clients that take only the range that was asked for, and that silence ends.

Clients take the bytes of any successful answer for the range that they asked for: those of a server that
sends whole files, of a proxy with another range in its cache, of a file that was replaced meanwhile. And the
Hub's client calls the files of its cache by the entity tags of answers, whatever path these name.
"""

from collections.abc import Mapping
from typing import Any

from vitcli.errors import reason_of

ETAG, MODIFIED = "ETag", "Last-Modified"
NAMES = (ETAG, "X-Linked-Etag", "X-Repo-Commit")  # which the Hub's client makes paths of
STALL_S = 30.0  # without any byte from the server
TRANSIENT = (408, 429, 500, 502, 503, 504)  # HTTP status: another try may succeed


class WrongAnswer(OSError):
    """An answer that does not fit the request."""


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
        raise WrongAnswer("the server does not support range requests")
    if status == 206 and not stated.get("Content-Range", "").startswith(f"bytes {first}-"):
        raise WrongAnswer("the server sends another range than the one requested")
    # A server states one or both of these; the stamp is the first that it stated.
    if stamp and stamp not in (stated.get(ETAG, stamp), stated.get(MODIFIED)):
        raise WrongAnswer("the file changed while being read")


def watch_hub() -> None:
    """Have the Hub's client refuse wrong answers, from now on in this process."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks
    if _check_hub not in hooks["response"]:
        get_session().event_hooks = {**hooks, "response": [*hooks["response"], _check_hub]}


def hub_outage(
    repository: str, file: str, *, revision: str | None, endpoint: str | None, repo_type: str | None = None
) -> str:
    """Ask the Hub once for a file; return why it cannot be asked, "" if it answers, whatever it says.

    Its client would try again for half a minute, without a word, where there is no network.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    watch_hub()
    try:
        url = hf_hub_url(repository, file, repo_type=repo_type, revision=revision, endpoint=endpoint)
        get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, endpoint=endpoint)
    except Exception as error:  # of the client's HTTP library, whichever its version has
        return outage_of(error)
    return ""


def outage_of(error: Exception) -> str:
    """Return in words how the Hub fails, whichever HTTP library its client has; "" for any other error."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"answers with status {response.status_code}" if response.status_code in TRANSIENT else ""
    is_invalid_name = isinstance(error, ValueError) and not isinstance(error, OSError)
    return "" if is_invalid_name else f"cannot be reached: {reason_of(error)}"


def _check_hub(answer: Any) -> None:
    check_range(answer.request.headers, answer.status_code, answer.headers)
    for name in NAMES:
        if "/" in answer.headers.get(name, "").removeprefix("W/"):
            raise WrongAnswer(f"its {name} is a path")


def file_system_options(url: str) -> dict[str, Any]:
    """Return the options of fsspec's file system for a URL."""
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


def failure_in_words(error: BaseException) -> str | None:
    """Return what went wrong with a request, for errors of aiohttp that say little or name the address."""
    kind = type(error).__name__
    if "Timeout" in kind:
        return f"the server has sent nothing for {STALL_S:g} s"
    if kind == "TooManyRedirects":
        return "the server redirects in a circle"
    status = getattr(error, "status", None)
    return f"the server answers with status {status}" if isinstance(status, int) else None


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
        headers={"Accept-Encoding": "identity"},  # a part of a compressed file is not a part of the file
        **settings,
    )
