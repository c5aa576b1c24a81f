"""`make bench`: what the system does per second, and why, in numbers that anybody can measure again.

`options` what can be asked for; `run` the sections in their order; `lab` the system they run on, prepared anew for each;
`engine`, `steps`, `planning`, `small_tenants`, `governor`, `limit`, `fairness` a section each; `inside` what has to run with
Django, in a process of its own, on the lab's database; `seed` the rows it starts from; `figures` what follows from what was
found (pure); `goals` what must be reached; `table` how it is shown.
"""
