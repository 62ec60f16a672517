"""Passwords and signatures in addresses, kept apart: no recipe, result or message holds them.

They are kept in the environment, as tokens are, and so reach the processes that vit starts. A resumed run
takes those of its new command line: signatures expire.
"""

import json
import os
import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

VARIABLE = "VIT_ADDRESSES"  # by address without credentials, the one with them
# Up to the last @ of the host, as libraries read it; a slash belongs to a password that was not encoded, for
# no port is in front of it.
PASSWORD = re.compile(r"(?<=://)(?:[^/?]*@|[^/:@?\[]+:(?!\d*(?:/|$))[^?]*@)")
LEAST_MASKED = 6  # characters of a single value: shorter ones are words of any message
_given: set[str] = set()  # addresses with credentials, also those that a renewed one has replaced


def public_address(address: str) -> str:
    """Return an address without user, password and query; a path as it is."""
    return PASSWORD.sub("", address.partition("?")[0]) if "://" in address else address


def without_credentials(address: str) -> str:
    """Return an address as `public_address`, and keep it whole for `with_credentials`."""
    public = public_address(address)
    if public != address:
        _given.add(address)
        os.environ[VARIABLE] = json.dumps(_known() | {public: address})
    return public


def with_credentials(address: str) -> str:
    """Return the address that this process was given."""
    return _known().get(address, address)


def hide_credentials(text: str) -> str:
    """Mask what is kept wherever it stands in a text, also as libraries encode and decode it."""
    secrets = {secret for address in _given | set(_known().values()) for secret in _secrets_of(address)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets_of(address: str) -> Iterator[str]:
    before, _, query = address.partition("?")
    logins = PASSWORD.findall(before)
    yield from logins
    if query:
        yield query
    values = [value.partition("=")[2] for value in query.split("&")]
    for value in [login.removesuffix("@").partition(":")[2] for login in logins] + values:
        plain = unquote(value)
        spellings = (value, plain, quote(plain), quote(plain, safe=""))
        yield from (spelling for spelling in spellings if len(plain) >= LEAST_MASKED)


def _known() -> dict[str, str]:
    try:
        known = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:  # not ours
        return {}
    return known if isinstance(known, dict) else {}
