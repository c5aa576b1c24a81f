"""The error answers of Resend: `{"statusCode", "message", "name"}`.

Names and statuses: https://resend.com/docs/api-reference/errors. The pages of different years disagree about an
invalid key (403 `invalid_api_key`, or 401 `validation_error`); `invalid_api_key` answers as the introduction of the API
reference says (403), `revoked_api_key` as the newer error page does (401).
"""

from __future__ import annotations

from dataclasses import dataclass

from devtools.sandbox.messages import Answer, Headers, json_answer


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not accepted."""

    status: int
    name: str
    message: str

    def answer(self, headers: Headers = ()) -> Answer:
        return json_answer(
            self.status, {"statusCode": self.status, "message": self.message, "name": self.name}, headers
        )


def field_error(message: str, name: str = "validation_error") -> Refusal:
    return Refusal(422, name, message)


def unverified_domain(domain: str) -> Refusal:
    return Refusal(
        403,
        "validation_error",
        f"The {domain} domain is not verified. Please, add and verify your domain on https://resend.com/domains",
    )


#: Of an account that may not send yet, whatever its domain.
ACCOUNT_REFUSED = Refusal(403, "validation_error", "You can only send testing emails to your own email address.")


def too_many_requests(rate: int) -> Refusal:
    return Refusal(
        429,
        "rate_limit_exceeded",
        f"Too many requests. You can only make {rate} requests per second. See rate limit response headers for more "
        "information.",
    )


NOT_JSON = Refusal(400, "validation_error", "The request body is not valid JSON.")
NOT_A_LIST = Refusal(400, "validation_error", "The request body must be an array of emails.")
TOO_LARGE = Refusal(413, "validation_error", "The request body is too large.")
BAD_HTTP = Refusal(400, "validation_error", "The request is not valid HTTP.")
BAD_IDEMPOTENCY_KEY = Refusal(400, "invalid_idempotency_key", "The key must be between 1-256 chars.")
MISSING_API_KEY = Refusal(401, "missing_api_key", "Missing API key in the authorization header.")
REVOKED_API_KEY = Refusal(401, "validation_error", "API key is invalid")
INVALID_API_KEY = Refusal(403, "invalid_api_key", "API key is invalid")
# The real one is refused by the content network in front of the API; what its body looks like is not documented.
MISSING_USER_AGENT = Refusal(403, "validation_error", "The User-Agent header is missing (error code 1010).")
NOT_FOUND = Refusal(404, "not_found", "The requested endpoint does not exist.")
NO_SUCH_EMAIL = Refusal(404, "not_found", "Email not found")
METHOD_NOT_ALLOWED = Refusal(405, "method_not_allowed", "Method is not allowed for the requested path.")
OTHER_PAYLOAD = Refusal(
    409, "invalid_idempotent_request", "Same idempotency key used with a different request payload."
)
IN_PROGRESS = Refusal(
    409,
    "concurrent_idempotent_requests",
    "Same idempotency key used while original request is still in progress.",
)
DAILY_QUOTA = Refusal(429, "daily_quota_exceeded", "You have reached your daily email sending quota.")
APPLICATION_ERROR = Refusal(500, "application_error", "An unexpected error occurred.")
UNAVAILABLE = Refusal(503, "service_unavailable", "The service is temporarily unavailable.")
