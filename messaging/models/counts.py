"""How many sends of a blast have which status, kept as sums: a GROUP BY over a million sends would cost 100 ms a look.

A trigger on the ledger (migration 0003) appends what each statement changed to `BlastDelta`; the clock folds those rows
into `BlastCount` and `BlastPace`; a read adds both up in one snapshot (`messaging.ledger.counts`). Nobody ever waits for
anybody: a transaction writes only delta rows of its own, and only the clock updates sums.
"""

from __future__ import annotations

from django.db import models


class BlastDelta(models.Model):
    """What one transaction changed in the number of a blast's sends with a status, until the clock has folded it.

    `xid` is PostgreSQL's number of that transaction: rows of transactions older than `BlastFold.floor` are gone.
    """

    pk = models.CompositePrimaryKey("xid", "blast_id", "status")
    xid = models.BigIntegerField()
    blast_id = models.UUIDField()
    status = models.CharField(max_length=16)
    delta = models.BigIntegerField()
    at = models.DateTimeField()

    class Meta:
        db_table = "messaging_blast_deltas"

    def __str__(self) -> str:
        return f"{self.blast_id} {self.status} {self.delta:+}"


class BlastCount(models.Model):
    """The folded part of a count. May be below zero for a moment: the part that makes up for it is not folded yet."""

    pk = models.CompositePrimaryKey("blast_id", "status")
    blast_id = models.UUIDField()
    status = models.CharField(max_length=16)
    n = models.BigIntegerField()

    class Meta:
        db_table = "messaging_blast_counts"

    def __str__(self) -> str:
        return f"{self.blast_id} {self.status} {self.n}"


class BlastPace(models.Model):
    """Sends of a blast accepted within a few seconds (from `at` on), folded. Kept for some minutes, for the rate."""

    pk = models.CompositePrimaryKey("blast_id", "at")
    blast_id = models.UUIDField()
    at = models.DateTimeField()
    n = models.BigIntegerField()

    class Meta:
        db_table = "messaging_blast_paces"

    def __str__(self) -> str:
        return f"{self.blast_id} {self.at} {self.n}"


class BlastFold(models.Model):
    """One row, id 1: who folds locks it. No delta of a transaction below `floor` is left, so that a read need not walk
    over the dead rows that an open snapshot (a dump, an export) keeps from being vacuumed."""

    id = models.SmallIntegerField(primary_key=True)
    floor = models.BigIntegerField(default=0)

    class Meta:
        db_table = "messaging_blast_fold"

    def __str__(self) -> str:
        return str(self.floor)
