"""What all rooms of the tests share."""

from __future__ import annotations

import os
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


@pytest.fixture
def served():
    """Starts fake RAS servers, and stops them."""
    from ras_server import Server

    made = []

    def serve(*reports, **more):
        made.append(Server(*reports, **more))
        return made[-1]

    yield serve
    for server in made:
        server.stop()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI nothing may skip (a missing tool would hide there for ever): with TRIAGE_NO_SKIPS a skip is a failure."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TRIAGE_NO_SKIPS"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may skip: {reason}"
