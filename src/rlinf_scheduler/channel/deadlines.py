"""How long a channel waits where nobody says otherwise, and what its journal is to survive: loaded by every worker."""

from __future__ import annotations

from typing import Literal

CONNECT_TIMEOUT_S = 120.0
# A channel's process has so long to write what it holds.
SAVE_TIMEOUT_S = 600.0
SUCCESSOR_S = 30.0
Survives = Literal["machine", "process"]
