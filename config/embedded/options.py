"""What the environment may say about embedded services. Development and tests only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: How long servers stay up without a client: covers the gap between two commands of a shell script or Makefile.
LINGER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """How a keeper is started. A client that finds a keeper running takes that one as it is."""

    folder: Path  # data, logs, locks; created if it is missing
    fsync: bool = True  # EMBEDDED_FSYNC=0 turns it off: tests only, a power cut may destroy the data
    throwaway: bool = False  # EMBEDDED_THROWAWAY=1: no linger, and the keeper deletes the data when it stops
    postgres_bin: Path | None = None  # EMBEDDED_POSTGRES_BIN: programs of a PostgreSQL 18, where there is no wheel

    @classmethod
    def read(cls, default_folder: Path, source: Mapping[str, str] = os.environ) -> Options:
        """`EMBEDDED_DATA_DIR` overrides the folder."""
        return cls(
            folder=Path(source.get("EMBEDDED_DATA_DIR") or default_folder).absolute(),
            fsync=source.get("EMBEDDED_FSYNC", "1") != "0",
            throwaway=source.get("EMBEDDED_THROWAWAY", "0") == "1",
            postgres_bin=Path(programs) if (programs := source.get("EMBEDDED_POSTGRES_BIN")) else None,
        )

    @property
    def linger(self) -> float:
        return 0.0 if self.throwaway else LINGER_SECONDS
