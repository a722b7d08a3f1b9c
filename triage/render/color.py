"""Is colour wanted on this terminal?"""

from __future__ import annotations

import os
from collections.abc import Mapping


def use_color(choice: str, terminal: bool, environ: Mapping[str, str] = os.environ) -> bool:
    """Colour on stdout? `always` wins; else only on a terminal that is not dumb, and never with NO_COLOR set."""
    if choice != "auto":
        return choice == "always"
    return terminal and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
