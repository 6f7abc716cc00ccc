"""Runs the benchmarks and prints what they found; the same goes to target/bench as JSON."""

import argparse
import importlib
import json
import platform
import time
from pathlib import Path

from harness import BENCH, CORES, Scale, Server

SCENARIOS = ["jobs", "graph", "latency", "wakeups", "calls"]


def number(value):
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def verdict(kind, target, value):
    if target is None:
        return ""
    kept = value >= target if kind == "at least" else value <= target
    return f"{kind} {number(target)}: {'kept' if kept else 'MISSED'}"


def show(result):
    print(f"\n{result.title}")
    for name, figure in result.figures.items():
        values = f"{number(figure.median):>10} {figure.unit:<8} ({number(min(figure.values))} … {number(max(figure.values))})"
        kind, target = result.targets.get(name, ("", None))
        print(f"  {name:<34} {values:<40} {verdict(kind, target, figure.median)}".rstrip())
    for name, ratio in result.ratios.items():
        values = f"{ratio['median']:>10.2f} {'':<8} ({ratio['low']:.2f} … {ratio['high']:.2f})"
        print(f"  {name:<34} {values:<40} {verdict('at least', ratio['target'], ratio['median'])}".rstrip())


def as_json(result):
    return {
        "title": result.title,
        "figures": {name: figure.as_json() for name, figure in result.figures.items()},
        "ratios": result.ratios,
        "targets": result.targets,
    }


def main():
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument("length", nargs="?", default="full", choices=["quick", "full"])
    parser.add_argument("scenario", nargs="*", help=f"{', '.join(SCENARIOS)}, layout; default: all but layout")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--parts", default="", help="of layout only, with commas: clean, large, foreign, lanes, snapshot"
    )
    given = parser.parse_intermixed_args()
    full = given.length == "full"
    scale = Scale(
        full=full, rounds=given.rounds or (5 if full else 2), parts=tuple(filter(None, given.parts.split(",")))
    )
    server = Server.from_environment()
    server.create_database()
    with server.connect() as conn:
        conn.execute((BENCH / "minimum.sql").read_text())
        version = conn.execute("SHOW server_version").fetchone()[0]
        settings = dict(
            conn.execute(
                """SELECT name, setting || coalesce(unit, '') FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit',
                   'shared_buffers', 'max_wal_size', 'wal_level', 'full_page_writes', 'shared_preload_libraries')"""
            ).fetchall()
        )
    print(f"Postgres {version}, {CORES} cores, {platform.machine()}; {scale.rounds} rounds, median (least … most)")
    print(", ".join(f"{name} {value}" for name, value in sorted(settings.items())))
    results = []
    started = time.time()
    for name in given.scenario or SCENARIOS:
        module = importlib.import_module(f"scenarios.{name}")
        for result in module.run(server, scale):
            results.append(result)
            show(result)
    file = Path(BENCH.parent / "target" / "bench" / f"{given.length}-{time.strftime('%Y%m%d-%H%M%S')}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "postgres": version,
        "cores": CORES,
        "rounds": scale.rounds,
        "settings": settings,
        "results": [as_json(r) for r in results],
    }
    file.write_text(json.dumps(record, indent=1, default=list) + "\n")
    print(f"\n{time.time() - started:.0f} s; {file.relative_to(BENCH.parent)}")


if __name__ == "__main__":
    main()
