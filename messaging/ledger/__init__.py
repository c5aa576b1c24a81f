"""The ledger: every statement that reads or changes sends, batches and their jobs.

Rules that hold in all of it:

* Locks are taken in one order: tenants by id, blasts by id, sender domains, the batch, sends.
* A status changes only by an UPDATE that names the statuses it may come from (`lifecycle.sources`).
* Time is the database's (`clock_timestamp()`).
* The cost of a statement does not depend on how many sends there are (`tests/messaging/ledger/test_plans.py`).
"""
