"""Filters of text that differ from the library's: they cut as the reference implementation does, and in linear time."""

from __future__ import annotations

import html

from liquid import Environment, Markup
from liquid import escape as as_markup
from liquid.filter import with_environment

from messaging.channels.templates.numbers import to_integer
from messaging.channels.templates.text import to_text

_DROPPED = ("<script", "</script>"), ("<style", "</style>"), ("<!--", "-->")


def strip_html(text: str) -> str:
    """Tags, comments, scripts and styles taken out, in one pass: the library's parser is quadratic on broken HTML."""
    lower = text.lower()
    if len(lower) != len(text):  # a few letters change length with their case; positions must agree
        lower = text
    kept: list[str] = []
    at = 0
    absent: set[str] = set()  # closers that do not occur any more: not looked for again
    while (opening := text.find("<", at)) >= 0:
        closer = next((end for start, end in _DROPPED if lower.startswith(start, opening)), ">")
        end = -1 if closer in absent else lower.find(closer, opening)
        if end < 0:
            absent.add(closer)
            closer = ">"
            end = -1 if closer in absent else lower.find(closer, opening)
            if end < 0:
                break
        kept.append(text[at:opening])
        at = end + len(closer)
    kept.append(text[at:])
    result = "".join(kept)
    return Markup(result) if isinstance(text, Markup) else result


def split(text: str, separator: str) -> list[str]:
    """Without empty parts at the end."""
    if separator == "":
        return list(text)
    parts = text.split(None if separator == " " else separator)
    while parts and not parts[-1]:
        parts.pop()
    return parts


def replace_last(text: str, old: str, new: str) -> str:
    at = text.rfind(old)
    return text if at < 0 else text[:at] + new + text[at + len(old) :]


def remove_last(text: str, old: str) -> str:
    at = text.rfind(old)
    return text if at < 0 else text[:at] + text[at + len(old) :]


def truncate(text: str, length: object = 50, ending: str = "...") -> str:
    most = to_integer(length)
    return text if len(text) <= most else text[: max(0, most - len(ending))] + ending


def truncatewords(text: str, count: object = 15, ending: str = "...") -> str:
    most = max(1, to_integer(count))
    words = text.split()
    if len(words) <= most:
        return text
    return (Markup if isinstance(text, Markup) else str)(" ").join(words[:most]) + ending


def cut(value: object, start: object, length: object = None) -> str | list[object]:
    """`slice`: elements of a list, characters of anything else."""
    sequence = list(value) if isinstance(value, list | tuple | range) else to_text(value)
    begin, most = to_integer(start), 1 if length is None else to_integer(length)
    if begin < 0:
        begin += len(sequence)
    if not 0 <= begin <= len(sequence) or most < 0:
        return sequence[:0]
    return sequence[begin : begin + most]


@with_environment
def escape(text: str, *, environment: Environment) -> str:
    return as_markup(text) if environment.autoescape else _escaped(text)


@with_environment
def escape_once(text: str, *, environment: Environment) -> str:
    """What is escaped already is not escaped again. Where all output is, that alone would do it twice."""
    return Markup(text).unescape() if environment.autoescape else _escaped(html.unescape(text))


def _escaped(text: str) -> str:
    return html.escape(text).replace("&#x27;", "&#39;")


def append(text: str, more: str) -> str:
    return text + more


def prepend(text: str, more: str) -> str:
    return more + text
