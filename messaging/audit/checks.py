"""What must hold in the ledger, as one statement for each population: given ids, it answers `(id, what, detail)` of those
for which it does not.

Everything around a row is looked up by key, row by row (`LATERAL … LIMIT 1`, scalar subqueries): a join would be free to hash
a whole table for a page of it. So the cost is a page's, whatever the ledger has (`tests/messaging/audit/test_plans.py`).
"""

from __future__ import annotations

#: Minutes after which an open job that nobody has taken up is told of. A lease is half a minute, a replay at most one.
LONG_PAST_MINUTES = 15
#: A finished job is pruned after seven days; until a day before that it must be there.
_JOB_KEPT = "interval '6 days'"

_OPEN_SEND = "('scheduled', 'queued', 'sending')"
_OPEN_BATCH = "('claimed', 'preparing', 'unknown')"
_ACCEPTED = "('accepted', 'accepted_in_part')"
_IN_BATCH = "s.id = ANY (b.send_ids)"

SENDS = f"""
SELECT s.id::text, w.what, w.detail
FROM messaging_sends s
LEFT JOIN LATERAL (SELECT * FROM messaging_batches b WHERE b.id = s.batch_id LIMIT 1) b ON true
LEFT JOIN LATERAL (SELECT * FROM messaging_blasts l WHERE l.id = s.blast_id LIMIT 1) l ON true
CROSS JOIN LATERAL (VALUES
    ('sending_outside_open_batch', coalesce(b.state, 'no batch'),
     s.status = 'sending' AND NOT coalesce(b.state IN {_OPEN_BATCH} AND {_IN_BATCH}, false)),
    ('ambiguous_outside_ambiguous_batch', coalesce(b.state, 'no batch'),
     s.status = 'ambiguous' AND NOT coalesce(b.state = 'ambiguous' AND {_IN_BATCH}, false)),
    ('sent_without_acceptance', coalesce(b.state, 'no batch'),
     s.status = 'sent' AND NOT coalesce(b.state IN {_ACCEPTED} AND {_IN_BATCH} AND s.provider_id <> '', false)),
    ('failed_without_dead_letter', coalesce(s.error_code, ''),
     s.status = 'failed' AND (SELECT d.id FROM core_dead_letters d WHERE d.send_id = s.id) IS NULL),
    ('open_in_finished_blast', s.status, s.status IN {_OPEN_SEND} AND l.finished_at IS NOT NULL),
    ('mixed_tenants', '',
     (s.blast_id IS NOT NULL AND l.tenant_id IS DISTINCT FROM s.tenant_id)
     OR (SELECT c.tenant_id FROM messaging_contents c WHERE c.id = s.content_id) IS DISTINCT FROM s.tenant_id)
) AS w (what, detail, wrong)
WHERE s.id = ANY (%(ids)s::uuid[]) AND w.wrong
"""

# A send that is not bound to an accepted batch any more was redriven: then the redrive says so.
BATCHES = f"""
SELECT b.id::text, w.what, w.detail
FROM messaging_batches b
CROSS JOIN LATERAL (
    SELECT count(*) AS n, count(DISTINCT u.id) AS distinct_n,
           count(*) FILTER (WHERE s.status = 'sending' AND s.batch_id = b.id) AS sending,
           count(*) FILTER (WHERE s.batch_id = b.id AND s.status IN ('sending', 'sent', 'ambiguous')) AS held,
           count(*) FILTER (WHERE s.batch_id = b.id AND s.status <> 'ambiguous') AS let_go,
           count(*) FILTER (WHERE s.rail <> b.rail OR s.channel <> b.channel) AS strangers,
           count(*) FILTER (WHERE b.state IN {_ACCEPTED} AND NOT CASE
               WHEN s.batch_id = b.id
               THEN (s.status = 'sent' AND s.provider_id <> '') IS TRUE OR (s.status = 'failed' AND b.state <> 'accepted')
               ELSE (SELECT r.id FROM messaging_redrives r WHERE r.send_id = u.id AND r.batch_id = b.id LIMIT 1) IS NOT NULL
           END) AS unsent
    FROM unnest(b.send_ids) AS u (id)
    LEFT JOIN LATERAL (SELECT * FROM messaging_sends s WHERE s.id = u.id LIMIT 1) s ON true
) f
LEFT JOIN LATERAL (
    SELECT done_at IS NULL AS open FROM core_processed_jobs j WHERE j.job_key = 'batch:' || b.id LIMIT 1
) j ON true
CROSS JOIN LATERAL (VALUES
    ('open_batch_lost_sends', f.sending || ' of ' || f.n, b.state IN {_OPEN_BATCH} AND f.sending <> f.n),
    ('accepted_batch_unsent', f.unsent || ' of ' || f.n, f.unsent > 0),
    ('ended_batch_holds_sends', b.state || ', ' || f.held,
     b.state IN ('rate_limited', 'not_sent', 'refused', 'credential') AND f.held > 0),
    ('ambiguous_batch_let_go', f.let_go || ' of ' || f.n, b.state = 'ambiguous' AND f.let_go > 0),
    ('send_twice_in_batch', f.n || ' places, ' || f.distinct_n || ' sends', f.n <> f.distinct_n),
    ('mixed_rails', f.strangers || ' of ' || f.n, f.strangers > 0),
    ('batch_without_open_job', CASE WHEN j.open IS NULL THEN 'missing' ELSE 'done' END,
     b.state IN {_OPEN_BATCH} AND j.open IS NOT TRUE),
    ('ended_batch_with_open_job', b.state,
     b.state NOT IN {_OPEN_BATCH}
     AND (j.open IS TRUE OR (j.open IS NULL AND b.finished_at > clock_timestamp() - {_JOB_KEPT})))
) AS w (what, detail, wrong)
WHERE b.id = ANY (%(ids)s::uuid[]) AND w.wrong
"""

JOBS = f"""
SELECT j.job_key, w.what, w.detail
FROM core_processed_jobs j
CROSS JOIN LATERAL (SELECT CASE
    WHEN j.job_key ~ '^batch:[0-9a-f-]{{36}}$' THEN coalesce(
        (SELECT b.state FROM messaging_batches b WHERE b.id = substring(j.job_key FROM 7)::uuid), 'missing')
END AS batch) b
CROSS JOIN LATERAL (VALUES
    ('job_without_open_batch', b.batch, b.batch NOT IN {_OPEN_BATCH}),
    ('lease_long_past', 'since ' || to_char(j.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
     j.lease_until < clock_timestamp() - {LONG_PAST_MINUTES} * interval '1 minute')
) AS w (what, detail, wrong)
WHERE j.job_key = ANY (%(ids)s::text[]) AND j.done_at IS NULL AND w.wrong
"""

BLASTS = """
SELECT b.id::text, 'finished_state', b.state
FROM messaging_blasts b
WHERE b.id = ANY (%(ids)s::uuid[])
  AND ((b.state = 'finished' AND b.finished_at IS NULL)
       OR (b.state IN ('planning', 'running', 'paused') AND b.finished_at IS NOT NULL))
"""

LETTERS = """
SELECT d.id::text, 'dead_letter_without_failure', coalesce(s.status, 'no send')
FROM core_dead_letters d
LEFT JOIN LATERAL (SELECT * FROM messaging_sends s WHERE s.id = d.send_id LIMIT 1) s ON true
WHERE d.id = ANY (%(ids)s::bigint[]) AND d.send_id IS NOT NULL
  AND ((d.redriven = 0 AND s.status IS DISTINCT FROM 'failed') OR d.tenant_id IS DISTINCT FROM s.tenant_id)
"""
