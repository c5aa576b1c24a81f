"""What Resend checks in each e-mail of a batch.

Fields and bounds: https://resend.com/docs/api-reference/emails/send-batch-emails and .../errors. Fields that are not
named here are ignored. An item is returned as it came: checks never change it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from devtools.sandbox.errors import Refusal, field_error

MAX_ITEMS = 100
MAX_RECIPIENTS = 50
RESERVED_DOMAINS = frozenset({"example.com", "test.com"})

_ADDRESS = re.compile(r"[^\s@<>,;\"]+@((?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,})")
_NAMED = re.compile(r"[^<>]*<([^<>]+)>")
_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")
_NOT_IN_A_BATCH = ("attachments", "scheduled_at")
_FORMAT = "The email address needs to follow the `email@example.com` or `Name <email@example.com>` format."


@lru_cache(maxsize=4096)
def domain_of(address: str) -> str | None:
    """The domain of `a@b.c` or `Name <a@b.c>`, in lower case; None if it is no address."""
    named = _NAMED.fullmatch(address.strip())
    match = _ADDRESS.fullmatch(named[1].strip() if named else address.strip())
    return match[1].lower() if match else None


def check_batch(items: Any) -> Refusal | None:
    """The request as a whole: an array of 1 to 100."""
    if not 1 <= len(items) <= MAX_ITEMS:
        return field_error(f"The batch must contain between 1 and {MAX_ITEMS} emails.")
    return None


def check_item(item: Any) -> Refusal | None:
    """The first thing that is wrong with one e-mail, or None."""
    if not isinstance(item, dict):
        return field_error("Each email must be an object.")
    for name in _NOT_IN_A_BATCH:
        if item.get(name) is not None:
            return field_error(f"The `{name}` field is not supported in a batch.")
    return (
        _check_from(item.get("from"))
        or _check_recipients("to", item.get("to"), required=True)
        or _check_recipients("cc", item.get("cc"))
        or _check_recipients("bcc", item.get("bcc"))
        or _check_content(item)
        or _check_headers(item.get("headers"))
        or _check_tags(item.get("tags"))
    )


def recipients(item: dict[str, Any]) -> list[str]:
    to = item["to"]
    return [to] if isinstance(to, str) else to


def _check_from(sender: Any) -> Refusal | None:
    if not sender:
        return field_error("Missing `from` field.", "missing_required_field")
    if not isinstance(sender, str) or domain_of(sender) is None:
        return field_error(f"Invalid `from` field. {_FORMAT}")
    return None


def _check_recipients(field: str, value: Any, *, required: bool = False) -> Refusal | None:
    if value is None or value in ("", []):
        return field_error(f"Missing `{field}` field.", "missing_required_field") if required else None
    addresses = [value] if isinstance(value, str) else value
    if not isinstance(addresses, list) or len(addresses) > MAX_RECIPIENTS:
        return field_error(f"Invalid `{field}` field. It must hold at most {MAX_RECIPIENTS} email addresses.")
    for address in addresses:
        domain = domain_of(address) if isinstance(address, str) else None
        if domain is None:
            return field_error(f"Invalid `{field}` field. {_FORMAT}")
        if domain in RESERVED_DOMAINS:
            return field_error(
                f"Invalid `{field}` field. Please use our testing email address instead of domains like `example.com`."
            )
    return None


def _check_content(item: dict[str, Any]) -> Refusal | None:
    if not isinstance(item.get("subject"), str) or not item["subject"]:
        return field_error("Missing `subject` field.", "missing_required_field")
    html, text = item.get("html"), item.get("text")
    if not html and not text:
        return field_error("Missing `html` or `text` field.", "missing_required_field")
    if not isinstance(html, str | None) or not isinstance(text, str | None):
        return field_error("The `html` and `text` fields must be strings.")
    reply_to = item.get("reply_to")
    if not isinstance(reply_to, str | list | None):
        return field_error("Invalid `reply_to` field.")
    return None


def _check_headers(headers: Any) -> Refusal | None:
    if headers is None:
        return None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        return field_error("The `headers` field must be an object with string values.")
    return None


def _check_tags(tags: Any) -> Refusal | None:
    if tags is None:
        return None
    if not isinstance(tags, list):
        return field_error("The `tags` field must be an array of `name` and `value` pairs.")
    for tag in tags:
        if not isinstance(tag, dict) or not isinstance(tag.get("name"), str) or not isinstance(tag.get("value"), str):
            return field_error("The `tags` field must be an array of `name` and `value` pairs.")
        if not _TAG.fullmatch(tag["name"]) or not _TAG.fullmatch(tag["value"]):
            return field_error(
                "Tags should only contain ASCII letters, numbers, underscores, or dashes, and at most 256 characters."
            )
    return None
