"""Run a training script unchanged, and time or capture some of its steps.

    python benchmarks/studies/unmodified.py [--updates N] [--endless] SCRIPT ARGUMENT ...

A step ends with N (1 if not given) calls of an optimizer's `step`. As in foreign_programs.py, the program ends after
STEPS steps and STEPS captured ones, and the times are printed; with `--endless` it runs on, uncaptured, for py-spy.
The script runs in its own folder.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

import torch
from foreign_programs import Window
from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    """Count the optimizer's steps while the script runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--endless", action="store_true")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    window, updates = Window(), 0

    def updated(*_arguments: object) -> None:
        nonlocal updates
        updates += 1
        if updates % options.updates == 0 and window.step_done():
            print("\n" + json.dumps({"program": options.script.parent.name, **window.times()}), flush=True)
            sys.exit()

    if not options.endless:
        register_optimizer_step_post_hook(updated)
    torch.cuda.init()
    script = options.script.resolve()
    os.chdir(script.parent)
    sys.argv = [str(script), *options.arguments]
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
