"""`/_sandbox/inbox`: what was accepted, to be looked at in a browser. Newest first, a page at a time; with
`--keep-bodies` each e-mail too, as a mail program would show it.

What is shown comes from outside, and test data is hostile on purpose: everything is escaped, the HTML of an e-mail is
shut in a frame without scripts, and the page may load nothing from anywhere.
"""

from __future__ import annotations

import re
from urllib.parse import urlencode

from devtools.sandbox import inbox_pages as pages
from devtools.sandbox.messages import Answer, Request
from devtools.sandbox.provider import Provider
from devtools.sandbox.search import Wanted, newest

PER_PAGE = 50
_REFRESH_SECONDS = 5
_MAX_WANTED = 320  # longer than any address
_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)

#: Styles of its own and of the e-mail in the frame; pictures only if they are in the e-mail itself. A frame with `srcdoc`
#: is under the same rules.
_HEADERS = (
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
)


class Inbox:
    def __init__(self, provider: Provider, path: str) -> None:
        self._provider, self._path = provider, path

    def page(self, request: Request) -> Answer:
        """The list. Raises ValueError if the cursor is none."""
        query = {name: request.query.get(name, "").strip()[:_MAX_WANTED] for name in ("to", "send_id")}
        cursor = request.query.get("before")
        if cursor is not None and not _WHOLE.fullmatch(cursor):
            raise ValueError("before must be a whole number.")
        before = None if cursor is None else int(cursor)
        refresh = request.query.get("refresh") == "1" and before is None
        log, options = self._provider.log, self._provider.options
        found = newest(log, PER_PAGE, Wanted(query["to"], query["send_id"], options.send_id_tag), before)
        return _html(
            200,
            pages.inbox(
                found,
                total=log.total,
                bodies=options.keep_bodies,
                query=query,
                links=pages.Links(
                    path=self._path,
                    older=self._link(query, before=str(found.older)) if found.older is not None else None,
                    newest=self._link(query) if before is not None else None,
                    refresh=self._link(query, **({} if refresh else {"refresh": "1"})),
                ),
                every=_REFRESH_SECONDS if refresh else None,
                send_id_tag=options.send_id_tag,
            ),
        )

    def email(self, email_id: str) -> Answer:
        email = self._provider.log.email(email_id)
        if email is None:
            return _html(404, pages.unknown(self._path))
        return _html(200, pages.email(email, self._path, bodies=self._provider.options.keep_bodies))

    def _link(self, query: dict[str, str], **more: str) -> str:
        wanted = {name: value for name, value in (query | more).items() if value}
        return f"{self._path}?{urlencode(wanted)}" if wanted else self._path


def _html(status: int, text: str) -> Answer:
    return Answer(status, text.encode("utf-8", "replace"), _HEADERS, content_type="text/html; charset=utf-8")
