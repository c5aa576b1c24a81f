"""`make k6`: does the promise hold under load? Six kinds of traffic on the whole system, each with its conditions.

The traffic over HTTP is k6's, by the scripts in the folder `k6`; whatever is judged is the ledger's and the provider's.
`options` what can be asked for; `run` the profiles in their order; `conditions` what each must reach, in one table; `program`
where k6 is; `script` one run of a script; `scene` the system as a profile needs it, and what it says afterwards; `judge` what
follows from that (pure); a file for each profile.
"""
