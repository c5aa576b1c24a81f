"""Resend: https://resend.com/docs/api-reference/emails/send-batch-emails."""

from messaging.providers.resend.adapter import ResendAdapter

__all__ = ["ResendAdapter"]
