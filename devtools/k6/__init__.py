"""`make profiles`: does the promise hold under load? Six kinds of traffic on the whole system, each with its conditions.

`options` what can be asked for; `run` the profiles in their order; `conditions` what each must reach, in one table; `scene`
the system as a profile needs it, and what it says afterwards; `judge` what follows from that (pure); a file for each profile.
"""
