"""Run one part of the GPU check in this process; or note a part that died, or merge reports.

    python -m benchmarks.gpu run 2 --device cuda --size full
    python -m benchmarks.gpu died 2 "out of time after 600 s"
    python -m benchmarks.gpu merge first/gpu-check.json second/gpu-check.json

`scripts/gpu_check.sh` does the first two, with a time limit.
"""

import argparse
import os
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.report import TITLES, Report

REHEARSAL = "tiny: a rehearsal, its figures mean nothing"
MODULES = {"1": "suite", "2": "similarity", "3": "epochs", "4": "extraction", "5": "detector"}


def run(part: str, options: argparse.Namespace) -> bool:
    """Run a part; whatever breaks it becomes its reason. Tell whether it came to a good end."""
    command = f"DEVICE={options.device} SIZE={options.size} scripts/gpu_check.sh {part}"
    report = Report(options.out)
    report.begin(part, command, {})
    begun = time.monotonic()
    try:
        machine = import_module("benchmarks.gpu.machine")
        device = machine.torch.device(options.device)
        report.parts[part]["environment"] = machine.describe(device)
        tiny = options.size == "tiny"
        if tiny:
            report.parts[part]["environment"]["size"] = (
                "tiny: a rehearsal, its figures mean nothing"
            )
            machine.torch.set_num_threads(1)
        check = machine.Check(part, device, tiny, report, command, options.limit_s)
        import_module(f"benchmarks.gpu.{MODULES[part]}").run(check)
    except Exception as error:  # noqa: BLE001 - a part's failure becomes a row
        traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        reason = f"{type(error).__name__} at {place}: {str(error)[:500]}"
        report.end(part, "failed", reason, time.monotonic() - begun)
        return False
    report.end(part, "done", "", time.monotonic() - begun)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run")
    one.add_argument("part", choices=list(TITLES))
    one.add_argument("--device", default="cuda")
    one.add_argument("--size", choices=["full", "tiny"], default="full")
    one.add_argument("--limit-s", type=float, default=600.0)
    died = verbs.add_parser("died")
    died.add_argument("part", choices=list(TITLES))
    died.add_argument("reason")
    merge = verbs.add_parser("merge")
    merge.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.verb == "run":
        return 0 if run(options.part, options) else 1
    report = Report(options.out)
    if options.verb == "died":
        if report.parts.get(options.part, {}).get("status") != "failed":
            report.end(options.part, "failed", options.reason, 0.0)
        return 0
    for file in options.files:
        report.merge(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
