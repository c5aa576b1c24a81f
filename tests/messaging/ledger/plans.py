"""The plan that the server really uses for a prepared statement: the generic one, executed, with its buffers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection
from psycopg import sql

#: Tables that grow with every send, and those that grow with tenants and blasts.
LEDGER = {"messaging_sends", "messaging_batches", "core_processed_jobs"}
BIG = LEDGER | {"messaging_blasts", "messaging_tenant_lanes", "messaging_due_lanes", "core_tenants"}
#: A bitmap of a partial index on what is live is bounded, but for sends.
_WALKS = {("Seq Scan", True), ("Seq Scan", False), ("Bitmap Heap Scan", True)}


@dataclass(frozen=True)
class Plan:
    root: Mapping[str, Any]

    def nodes(self) -> Iterator[Mapping[str, Any]]:
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield node
            stack += node.get("Plans", [])

    @property
    def buffers(self) -> int:
        """Pages touched, in memory or not."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    def offences(self) -> list[str]:
        """Ways of reading the ledger whose cost grows with it, where they really ran."""
        return [
            f"{node['Node Type']} on {node['Relation Name']}"
            for node in self.nodes()
            if (node["Node Type"], node.get("Relation Name") in LEDGER) in _WALKS
            and node["Relation Name"] in BIG
            and node["Actual Loops"] > 0
            and not _nearly_empty(node)
        ] + [
            node["Node Type"]
            for node in self.nodes()
            if node["Node Type"] in ("Hash Join", "Merge Join") and _reads_sends(node) and node["Actual Loops"] > 0
        ]


def _nearly_empty(node: Mapping[str, Any]) -> bool:
    """Read from end to end, and hardly anything was there: rightly so. Which tests ran before decides whether the server
    knows that. The sends are never few in these tests."""
    seen = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return bool(node["Relation Name"] != "messaging_sends" and node["Node Type"] == "Seq Scan" and seen <= 50)


def _reads_sends(node: Mapping[str, Any]) -> bool:
    return node.get("Relation Name") == "messaging_sends" or any(_reads_sends(child) for child in node.get("Plans", []))


def generic_plan(statement: str, parameters: Mapping[str, Any]) -> Plan:
    """EXPLAIN ANALYZE of the generic plan of `statement`. It runs: do it in a transaction that is rolled back."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    prepared = re.sub(r"%\((\w+)\)s", number, statement).replace("%%", "%")
    connection.ensure_connection()
    raw = connection.connection
    with raw.cursor() as cursor:
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE under_test AS {prepared}")
        try:
            arguments = sql.SQL(", ").join(sql.Literal(parameters[name]) for name in names)
            given = sql.SQL("({})").format(arguments) if names else sql.SQL("")
            cursor.execute(
                sql.SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE under_test {}").format(given)
            )
            found = cursor.fetchone()[0]
        finally:
            cursor.execute("DEALLOCATE under_test")
    plan = json.loads(found) if isinstance(found, str) else found
    return Plan(plan[0]["Plan"])
