"""The audit: the ledger against itself, and against a provider's log of what it accepted.

`walks` names the populations and reads them a page of ids at a time; `checks` has one statement for each population, which says
of a page what contradicts what; `counts` adds up blasts; `provider_log` compares; `run` puts it together and tells.

What is compared changes in one transaction, and is looked at in one statement, hence one snapshot: traffic makes no
difference. What looks wrong is looked at again a moment later all the same, and told only if it still does.
"""

from messaging.audit.report import Difference, Report
from messaging.audit.run import audit

__all__ = ["Difference", "Report", "audit"]
