"""What all rooms of the tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
# On a node a probe finds what it shares with others beside itself; so it does here.
sys.path.insert(0, str(ROOT / "probes"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real dumps and incidents; they live beside the repository and are not part of it."""
    if not SHARED.is_dir():
        pytest.skip("the real dumps of ../shared/data are not here")
    return SHARED
