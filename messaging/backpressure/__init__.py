"""Yield: while the transactional rail has more to do than it can in a second, marketing workers fetch nothing.

`policy` says from which depth on (pure), `messaging.ledger.depth` counts, `measure` puts the two together, `keeper` flips
the gate of one queue, `middleware` runs that in worker processes, `state` tells the others.
"""
