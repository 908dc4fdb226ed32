"""Runs the samples through nandiag and its peers, and prints how often each named the right place (scripts/score).

Without --all or --only it takes the samples that the tests run by default. A tool sees the script as it lies there;
each answer is compared with the expected file by the function that the tests use.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from scoring import corpus, runs, table


def chosen(pattern: str | None, *, everything: bool) -> list[Path]:
    """Return the expected files whose sample's name fits ``pattern``; without one all, or the fast ones."""
    if pattern is None:
        return [path for path in corpus.EXPECTED if everything or corpus.is_fast(path)]
    wanted = (pattern, f"*{pattern}*")
    return [path for path in corpus.EXPECTED if any(fnmatch.fnmatch(corpus.name_of(path), each) for each in wanted)]


def known(file: Path | None) -> dict[str, dict[str, runs.Result]]:
    """Return the cases of an earlier result file, by name; none where there is no such file."""
    if file is None or not file.exists():
        return {}
    cases: dict[str, dict[str, runs.Result]] = json.loads(file.read_text(encoding="utf-8"))["cases"]
    return cases


def document(cases: dict[str, dict[str, runs.Result]]) -> str:
    """Return the result file: when, with what, each case and the totals."""
    content = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "versions": runs.versions(),
        "totals": table.totals(cases),
        "cases": dict(sorted(cases.items())),
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="scripts/score", description=__doc__)
    parser.add_argument("--all", action="store_true", help="the whole corpus (half an hour on two cores)")
    parser.add_argument("--only", metavar="PATTERN", help="samples whose name holds PATTERN or fits it (data/*)")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--no-peers", dest="left_out", action="store_const", const=runs.PEERS, help="nandiag alone")
    who.add_argument("--peers-only", dest="left_out", action="store_const", const=(runs.NANDIAG,), help="peers alone")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there, beside those it holds")
    parser.add_argument("--missing", action="store_true", help="only samples of which --json FILE lacks a result")
    parser.add_argument("--with", dest="beside", metavar="FILE", type=Path, help="show that file's other tools beside")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="samples at a time")
    return parser.parse_args()


def lacks(results: dict[str, runs.Result], tools: list[str]) -> bool:
    """Tell whether a tool has not been run on a sample yet, or could not be."""
    return any("skipped" in results.get(tool, {"skipped": True}) for tool in tools)


def score(paths: list[Path], tools: list[str], args: argparse.Namespace) -> table.Cases:
    """Run, print and write the samples; return the results of these and of what the result file held."""
    cases = known(args.json)
    print(table.heading(tools), flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        for path, results in zip(paths, pool.map(lambda path: runs.measured(path, tools), paths), strict=True):
            name = corpus.name_of(path)
            cases[name] = {**cases.get(name, {}), **results}
            print(table.row(name, cases[name], tools), flush=True)
            if args.json:
                args.json.write_text(document(cases), encoding="utf-8")
    return cases


def main() -> int:
    """Score, print, write; 0 also where the score is poor, 2 where no sample is meant."""
    args = parsed()
    paths = chosen(args.only, everything=args.all)
    if not paths:
        print(f"no sample's name fits {args.only}", file=sys.stderr)
        return 2
    tools = [tool for tool in runs.TOOLS if tool not in (args.left_out or ())]
    names = [corpus.name_of(path) for path in paths]
    held = known(args.json) if args.missing else {}
    cases = score([path for path in paths if lacks(held.get(corpus.name_of(path), {}), tools)], tools, args)
    beside = known(args.beside)
    shown = {name: table.beside(cases[name], beside.get(name, {})) for name in names}
    print(table.summary(shown, list(runs.TOOLS) if args.beside else tools))
    return 0


if __name__ == "__main__":
    sys.exit(main())
