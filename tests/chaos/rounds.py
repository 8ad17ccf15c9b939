"""How often the chaos suite tries each thing, and with which dice: few times by `make test`, many by `make chaos`.

CLUSTERDDP_CHAOS is the number of rounds. CLUSTERDDP_CHAOS_SEED repeats the moments and places of an earlier session,
which printed its seed; a round's dice depend on the seed, its name and its number alone, so one can be run by itself.
"""

from __future__ import annotations

import os
import random
import secrets

ROUNDS = int(os.environ.get("CLUSTERDDP_CHAOS") or 1)
SEED = os.environ.setdefault("CLUSTERDDP_CHAOS_SEED", secrets.token_hex(4))  # the same for all of pytest-xdist's


def dice(name: str, number: int) -> random.Random:
    """The dice of one round of one test."""
    return random.Random(f"{SEED} {name} {number}")
