"""Resend's bytes: pinned, the same for the same items, different for different ones."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from messaging.providers.base import Item
from messaging.providers.resend.adapter import ResendAdapter
from tests.messaging.providers.resend.test_adapter import item

encode = ResendAdapter(api_key="", base_url="http://127.0.0.1:1").encode


def test_the_bytes_of_a_batch_are_pinned() -> None:
    """A change here breaks the replay of batches that are bound when the new version is rolled out: never lightly."""
    full = item(
        1, text="Größe", reply_to=("help@acme.example",), headers={"X-B": "2", "List-Unsubscribe": "<https://a.b>"}
    )
    assert encode([full, item(2, html=None, text="")]).decode() == (
        '[{"from":"Acme <news@acme.example>","to":["Zoë Nr. 1 <recipient+1@customer.example>"],"subject":"Größe 1",'
        '"html":"<p>1</p>","text":"Größe","reply_to":["help@acme.example"],'
        '"headers":{"List-Unsubscribe":"<https://a.b>","X-B":"2"},'
        f'"tags":[{{"name":"send_id","value":"{item(1).send_id}"}}]}},'
        '{"from":"Acme <news@acme.example>","to":["Zoë Nr. 2 <recipient+2@customer.example>"],"subject":"Größe 2",'
        f'"text":"","tags":[{{"name":"send_id","value":"{item(2).send_id}"}}]}}]'
    )  # fmt: skip


texts = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates too
items_ = st.builds(
    Item,
    send_id=st.uuids(),
    to=texts,
    sender=texts,
    subject=texts,
    html=st.none() | texts,
    text=st.none() | texts,
    reply_to=st.lists(texts, max_size=2).map(tuple),
    headers=st.dictionaries(texts, texts, max_size=2),
)
batches = st.lists(items_, min_size=1, max_size=3)


@given(batch=batches, other=batches)
def test_encode_is_injective(batch: list[Item], other: list[Item]) -> None:
    assert (encode(batch) == encode(other)) == (batch == other)


@given(batch=batches)
def test_what_is_encoded_can_be_read_back(batch: list[Item]) -> None:
    for email, source in zip(json.loads(encode(batch)), batch, strict=True):
        assert (email["from"], email["to"], email["subject"]) == (source.sender, [source.to], source.subject)
        assert (email.get("html"), email.get("text")) == (source.html, source.text)
        assert tuple(email.get("reply_to", ())) == source.reply_to
        assert email.get("headers", {}) == source.headers
        assert email["tags"] == [{"name": "send_id", "value": str(source.send_id)}]
