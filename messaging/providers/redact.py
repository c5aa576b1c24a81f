"""A provider's words, fit to be stored and logged: nothing in them that belongs to a person or opens a door."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Characters of a detail that are kept.
MAX_DETAIL = 500

#: Characters that are looked at: enough to leave MAX_DETAIL of them, little enough for any input.
_MAX_INPUT = 4 * MAX_DETAIL

_QUOTED_LOCAL_PART = re.compile(r'"[^"]*"(?=@)')
_WORD = re.compile(r"""[^\s<>"'`(),;\[\]{}|]+""")
#: What stands for an at sign in markup, in an URL, and in other scripts.
_AT = re.compile(r"＠|﹫|%40|&#0{0,5}64;|&#x0{0,5}40;|&commat;", re.IGNORECASE)
#: A telephone number: a plus and digits, or nine digits and more, with the usual separators.
_NUMBER = re.compile(r"(?<![\w+])(?:\+\d(?:[ ()./-]{0,2}\d){5,18}|\d(?:[ ()./-]{0,2}\d){8,18})(?!\w)")
#: Keys as Resend writes them, and whatever follows the word Bearer.
_KEY = re.compile(r"\b(?:re|whsec|sk)_[\w+/=-]+|(?<=\bBearer )\S+", re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def redact(text: object, *, secrets: Iterable[str] = ()) -> str:
    """`text` without addresses, telephone numbers, keys and `secrets`, on one line, at most MAX_DETAIL characters.

    Anything that is not a string gives "". Domains stay: "the domain x.org is not verified" is for the operator.
    """
    if not isinstance(text, str):
        return ""
    if len(text) > _MAX_INPUT:  # cut between words, so that no half of an address is left
        text = text[:_MAX_INPUT].rpartition(" ")[0]
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[key]")
    text = _UNPRINTABLE.sub(" ", text)
    text = _KEY.sub("[key]", text)
    text = _QUOTED_LOCAL_PART.sub("", _AT.sub("@", text))
    text = _WORD.sub(lambda word: "[address]" if "@" in word[0] else word[0], text)
    text = _NUMBER.sub("[number]", text)
    return text.strip()[:MAX_DETAIL]
