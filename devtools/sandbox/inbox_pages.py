"""The inbox as HTML. Every value goes through `escape`; what is long is cut, for nobody reads a subject of a megabyte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from devtools.sandbox.search import Found

#: Characters that are shown of a value in the list, of one on an e-mail's page, and of a body.
_SHORT, _LONG, _BODY = 160, 2_000, 1_000_000
_SHOWN_RECIPIENTS, _SHOWN_TAGS = 2, 6
_STYLE = Path(__file__).with_name("inbox.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Links:
    path: str
    older: str | None
    newest: str | None
    refresh: str


def inbox(
    found: Found,
    *,
    total: int,
    bodies: bool,
    query: Mapping[str, str],
    links: Links,
    every: int | None,
    send_id_tag: str,
) -> str:
    rows = "".join(_row(email, links.path) for email in found.emails)
    head = f'<meta http-equiv="refresh" content="{every}">' if every else ""
    body = (
        f"<h1>Inbox</h1><p class=soft>{total:,} {'e-mail' if total == 1 else 'e-mails'} accepted, the newest first."
        f"{'' if bodies else ' Bodies are not kept: start the sandbox with --keep-bodies to see them.'}</p>"
        f"{_form(query, links, every)}{_table(rows) if rows else _nothing(found, query)}{_nav(found, links)}"
    )
    return _document("Inbox", body, head)


def email(line: Mapping[str, Any], path: str, *, bodies: bool) -> str:
    facts = [
        ("to", ", ".join(line["to"])),
        ("from", line["from"]),
        ("subject", line["subject"]),
        ("accepted", _moment(line["accepted_at"])),
        ("request", f"number {line['request']:,}"),
        ("idempotency key", line["idempotency_key"] or "none"),
        *((f"tag {name}", value) for name, value in line["tags"].items()),
        ("id", line["id"]),
        *((f"header {name}", value) for name, value in (line.get("headers") or {}).items()),
    ]
    if reply_to := line.get("reply_to"):
        facts.append(("reply to", reply_to if isinstance(reply_to, str) else ", ".join(map(str, reply_to))))
    table = "".join(f"<tr><th scope=row>{_cut(name, _SHORT)}<td>{_cut(str(value), _LONG)}" for name, value in facts)
    body = (
        f"<p><a href='{escape(path)}'>Inbox</a></p><h1>{_cut(line['subject'], _SHORT)}</h1>"
        f"<table class=facts>{table}</table>{_bodies(line) if bodies else ''}"
    )
    if not bodies:
        body += "<p class=soft>Its body was not kept: start the sandbox with --keep-bodies to see it.</p>"
    return _document(line["subject"][:_SHORT], body)


def unknown(path: str) -> str:
    return _document(
        "No such e-mail",
        f"<h1>No such e-mail</h1><p>There is none with this id: <a href='{escape(path)}'>Inbox</a></p>",
    )


# ---------------------------------------------------------------------------------------------------------- parts


def _row(line: Mapping[str, Any], path: str) -> str:
    to = ", ".join(line["to"][:_SHOWN_RECIPIENTS])
    more = len(line["to"]) - _SHOWN_RECIPIENTS
    tags = list(line["tags"].items())
    shown = "".join(
        f"<span class=tag>{_cut(name, 40)} <b>{_cut(value, 48)}</b></span> " for name, value in tags[:_SHOWN_TAGS]
    )
    return (
        f"<tr><td class=time><time datetime='{_iso(line['accepted_at'])}' title='{_moment(line['accepted_at'])}'>"
        f"{_moment(line['accepted_at']).partition(' ')[2]}</time>"
        f"<td class=to>{_cut(to, _SHORT)}{f' and {more} more' if more > 0 else ''}"
        f"<td class=subject><a href='{escape(path)}/{escape(line['id'])}'>{_cut(line['subject'], _SHORT) or '(none)'}</a>"
        f"<td class=from>{_cut(line['from'], _SHORT)}"
        f"<td class=tags>{shown}{'…' if len(tags) > _SHOWN_TAGS else ''}<td class=request>{line['request']:,}"
    )


def _table(rows: str) -> str:
    names = ("time", "to", "subject", "from", "tags", "request")
    head = "".join(f"<th scope=col class={name}>{name}{' (UTC)' if name == 'time' else ''}" for name in names)
    return f"<table class=list><thead><tr>{head}<tbody>{rows}</table>"


def _form(query: Mapping[str, str], links: Links, every: int | None) -> str:
    parts = [f"<a href='{escape(links.path)}'>Show all</a>"] if any(query.values()) else []
    if not links.newest:
        doing = "Stop refreshing" if every else "Refresh every 5 seconds"
        parts.append(f"<a href='{escape(links.refresh)}'>{doing}</a>")
    return (
        f"<form action='{escape(links.path)}'>"
        f"<label>To <input name=to value='{escape(query['to'])}' placeholder='a part of an address'></label> "
        f"<label>Send id <input name=send_id value='{escape(query['send_id'])}' placeholder='exact'></label> "
        f"<button>Show</button> {' '.join(parts)}</form>"
    )


def _nothing(found: Found, query: Mapping[str, str]) -> str:
    if found.cut:
        return "<p class=nothing>Nothing that fits so far. There is more to look through.</p>"
    return f"<p class=nothing>{'Nothing that fits.' if any(query.values()) else 'Nothing was accepted yet.'}</p>"


def _nav(found: Found, links: Links) -> str:
    parts = [f"<a href='{escape(links.newest)}'>Newest</a>"] if links.newest else []
    if links.older:
        parts.append(f"<a href='{escape(links.older)}'>{'Look further back' if found.cut else 'Older'}</a>")
    return f"<nav>{' '.join(parts)}</nav>"


def _bodies(line: Mapping[str, Any]) -> str:
    shown = ""
    if html := line.get("html"):
        # `sandbox` without a word allows nothing: no script, no form, no way out of the frame.
        frame = f"<iframe sandbox srcdoc='{escape(html[:_BODY])}' title='The e-mail as HTML'></iframe>"
        shown += f"<h2>HTML</h2>{frame}{_rest(html)}"
    if text := line.get("text"):
        shown += f"<h2>Text</h2><pre>{escape(text[:_BODY])}</pre>{_rest(text)}"
    return shown


def _rest(body: str) -> str:
    return f"<p class=soft>Cut after {_BODY:,} of {len(body):,} characters.</p>" if len(body) > _BODY else ""


def _cut(text: str, most: int) -> str:
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _document(title: str, body: str, head: str = "") -> str:
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"{head}<link rel=icon href='data:,'><title>{escape(title)} · sandbox</title><style>{_STYLE}</style>"
        f"<body><main>{body}</main>"
    )
