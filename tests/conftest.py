"""What all rooms of the tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real dumps and incidents; they live beside the repository and are not part of it."""
    if not SHARED.is_dir():
        pytest.skip("the real dumps of ../shared/data are not here")
    return SHARED
