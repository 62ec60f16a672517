"""Passwords and signatures in addresses, kept apart: no recipe, result or message holds them.

They are kept in the environment, as tokens are, and so reach the processes that vit starts. A resumed run
takes those of its new command line: signatures expire.
"""

import json
import os
import re

VARIABLE = "VIT_ADDRESSES"  # by address without credentials, the one with them
PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def without_credentials(address: str) -> str:
    """Return an address without user, password and query, and keep it whole for `with_credentials`."""
    if "://" not in address:
        return address
    public = PASSWORD.sub("", address.partition("?")[0])
    if public != address:
        os.environ[VARIABLE] = json.dumps(_known() | {public: address})
    return public


def with_credentials(address: str) -> str:
    """Return the address that this process was given."""
    return _known().get(address, address)


def hide_credentials(text: str) -> str:
    """Mask what is kept wherever it stands in a text."""
    for address in _known().values():
        before, _, query = address.partition("?")
        for secret in (*PASSWORD.findall(before), *([query] if query else [])):
            text = text.replace(secret, "***")
    return text


def _known() -> dict[str, str]:
    return json.loads(os.environ.get(VARIABLE, "{}"))
