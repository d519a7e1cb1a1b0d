"""Run one part of the GPU check in this process, or record that a part died.

    python -m benchmarks.gpu run b --device cuda --size full
    python -m benchmarks.gpu died b "out of time after 600 s"

`scripts/gpu_check.sh` does both, with a time limit.
"""

import argparse
import os
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

from benchmarks.gpu.report import TITLES, Report, reason_of

REHEARSAL = "tiny: a rehearsal, its figures mean nothing"
WORK = {
    "a": "steps:small", "b": "steps:at_size", "d": "epochs:run",
    "f": "suite:run",
}  # fmt: skip
"""Function of each part, in this package."""


def run(part: str, options: argparse.Namespace) -> bool:
    """Run a part and return whether it succeeded; an error becomes its reason."""
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
            report.parts[part]["environment"]["size"] = REHEARSAL
            machine.torch.set_num_threads(1)
        check = machine.Check(part, device, tiny, report, command, options.limit_s, begun)
        resolve_name(f"benchmarks.gpu.{WORK[part]}")(check)
    except Exception as error:  # noqa: BLE001 - a part's failure becomes a row
        traceback.print_exc()
        report.end(part, "failed", reason_of(error), time.monotonic() - begun)
        return False
    reason = "; ".join(check.broken)
    report.end(part, "failed" if reason else "done", reason, time.monotonic() - begun)
    return not reason


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
    options = parser.parse_args()
    if options.verb == "run":
        return 0 if run(options.part, options) else 1
    report = Report(options.out)
    if report.parts.get(options.part, {}).get("status") != "failed":
        report.end(options.part, "failed", options.reason, 0.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
