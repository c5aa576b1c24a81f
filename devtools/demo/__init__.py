"""`make demo`: one tenant's blast and two tenants' login codes at once, on the whole system, in numbers.

`options` what can be asked for; `scenario` the run; `tenants` what it sets up; `load` the login codes; `evidence` what the
ledger, the governor and the provider say afterwards; `figures` what follows from it (pure); `display` how it is shown.
"""
