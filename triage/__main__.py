"""`triage` and `python -m triage`. `--version` is answered before anything is imported."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from triage import __version__

        print(f"triage {__version__}")
        return
    from triage.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
