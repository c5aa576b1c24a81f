"""What is sent: its validation, its storage form, its rendering. Pure values; no database, no provider."""

from messaging.content.document import Document
from messaging.content.template import Rendered, RenderError, Template, compile_document
from messaging.content.variables import validate_variables

__all__ = ["Document", "RenderError", "Rendered", "Template", "compile_document", "validate_variables"]
