"""`python -m devtools.chaos`: everything is killed, cut off and confused while it sends, and afterwards each send must have
been sent once.

`schedule` says what happens when (pure, from a seed), `faults` does it, `load` submits meanwhile as stubborn clients do,
`evidence` reads ledger and provider, `judge` counts (pure), `report` tells.
"""
