"""Pausing, resuming and cancelling what is sent together: a blast, or a tenant's single sends on a rail.

Each acts through one row, never send by send. A claim holds that row in share and re-checks it, and these functions take
a lock that conflicts with it; so when `pause_*` or `cancel_blast` has returned (inside a caller's transaction: when that
has committed), no claim takes a send of the lane any more. Sends that were claimed before are in a request already and
are not called back.
"""

from __future__ import annotations

import logging
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from core.models import Tenant
from messaging.domain.errors import Conflict, NotFound
from messaging.domain.lifecycle import BLAST_STEPS, BlastState
from messaging.domain.rails import PRIORITIES, Channel, Rail
from messaging.ledger import claim_gate, hints
from messaging.models import Blast, TenantLane
from messaging.services.tickets import send_ticket

log = logging.getLogger(__name__)

#: What `ledger.lanes.SAYS_NOTHING` says.
_SAYS_NOTHING = {"paused": False, "isolated": False, "hold_code": ""}


def pause_blast(blast_id: UUID, *, tenant_id: int | None = None) -> Blast:
    """Stop a running blast until it is resumed. Safe to repeat.

    With `tenant_id`, a blast of anybody else is not found (NotFound). Raises Conflict `blast_state` if it is not
    running; a blast that is still being planned is not sent anyway.
    """
    return _step(blast_id, tenant_id, BlastState.PAUSED, {BlastState.RUNNING})


def resume_blast(blast_id: UUID, *, tenant_id: int | None = None) -> Blast:
    """Let a paused blast go on where it stopped. Safe to repeat. Raises as `pause_blast`."""
    return _step(blast_id, tenant_id, BlastState.RUNNING, {BlastState.PAUSED})


def cancel_blast(blast_id: UUID, *, tenant_id: int | None = None) -> Blast:
    """Send nothing more of a blast, whether it is being planned, running or paused. It cannot be taken back.

    Its open sends become `cancelled` by and by (the clock clears them). A planner that is still reading recipients
    stops at its next chunk. Safe to repeat. Raises as `pause_blast`.
    """
    sources = {state for state, targets in BLAST_STEPS.items() if BlastState.CANCELLED in targets}
    return _step(blast_id, tenant_id, BlastState.CANCELLED, sources)


def _step(blast_id: UUID, tenant_id: int | None, target: BlastState, sources: set[BlastState]) -> Blast:
    with transaction.atomic():
        blast = lock_blast(blast_id, tenant_id)
        state = BlastState(blast.state)
        if state is target:
            return blast
        if state not in sources:
            raise Conflict("blast_state", f"The blast is {state}: it cannot become {target}.")
        assert target in BLAST_STEPS[state]
        blast.state = target
        blast.save(update_fields=["state"])
        if target is BlastState.RUNNING:
            make_due(blast)
        else:
            hints.forget([blast.pk])
    log.info("blast_state", extra={"blast": blast.pk, "tenant": blast.tenant_id, "was": state, "state": target})
    return blast


def lock_blast(blast_id: UUID, tenant_id: int | None = None) -> Blast:
    """The blast, locked FOR UPDATE for this transaction. NotFound if there is none (of that tenant).

    Waits for the claims that are under way, and for none that comes later.
    """
    claim_gate.close_blasts([blast_id], patient=True)
    blasts = Blast.objects.select_for_update()
    if tenant_id is not None:
        blasts = blasts.filter(tenant_id=tenant_id)
    blast = blasts.filter(pk=blast_id).first()
    if blast is None:
        raise NotFound("unknown_blast", "There is no such blast.")
    return blast


def make_due(blast: Blast) -> None:
    """Set the hints of a locked blast from facts, and wake a worker after the commit.

    Without a queued send (all are scheduled, or done) there is nothing to find: the clock sets the hints when there is.
    """
    first = hints.first_due(blast.pk)
    if first is not None:
        hints.set_due({blast.pk: first})
        transaction.on_commit(partial(send_ticket, Channel(blast.channel), Rail(blast.rail)))


def pause_tenant_lane(tenant: Tenant, channel: Channel, rail: Rail) -> None:
    """Stop the tenant's single sends on a rail until `resume_tenant_lane`. Its blasts go on. Safe to repeat."""
    _set_paused(tenant, channel, rail, paused=True)


def resume_tenant_lane(tenant: Tenant, channel: Channel, rail: Rail) -> None:
    """Let the tenant's single sends on a rail go out again, oldest first, and wake a worker. Safe to repeat."""
    _set_paused(tenant, channel, rail, paused=False)


def _set_paused(tenant: Tenant, channel: Channel, rail: Rail, *, paused: bool) -> None:
    with transaction.atomic():
        # The lane's own row may not exist yet, and what does not exist cannot be locked: the tenant's row stands for it.
        claim_gate.close_tenants([tenant.pk], patient=True)
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        if paused:
            for priority in PRIORITIES[rail]:
                TenantLane.objects.update_or_create(
                    tenant=tenant, channel=channel, rail=rail, priority=priority, defaults={"paused": True}
                )
        else:
            lanes = TenantLane.objects.filter(tenant=tenant, channel=channel, rail=rail)
            lanes.update(paused=False)
            lanes.filter(**_SAYS_NOTHING).exclude(stalls_until__gt=Now()).delete()
            transaction.on_commit(partial(send_ticket, channel, rail))
    log.info("tenant_lane", extra={"tenant": tenant.pk, "channel": channel, "rail": rail, "paused": paused})
