"""E-mail: its addresses, its document, and what one recipient's values make of it. Pure: no database, no provider."""

from messaging.channels.email.document import Document
from messaging.channels.email.template import Rendered, RenderError, Template, compile_document

__all__ = ["Document", "RenderError", "Rendered", "Template", "compile_document"]
