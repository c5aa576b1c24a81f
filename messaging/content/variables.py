"""The values that a template is filled with: plain JSON, bounded, and nothing that could pass for safe markup."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from core.hashing import canonical_json
from messaging.errors import InvalidInput

type_JSON = None | bool | int | float | str | list["type_JSON"] | dict[str, "type_JSON"]
