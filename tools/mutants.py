#!/usr/bin/env python3
"""Mutants: one deliberate fault at a time, and which tests see it.

Every mutant of `mutant_list.py` is compiled into one copy of the workspace, behind
`crate::mutants::on(N)`, which reads the environment; so the suites are built once and run once per
mutant. Usage:

    tools/mutants.py                  run all mutants, write docs/mutants.md
    tools/mutants.py 3 17             run these only, print the table
    tools/mutants.py --list           print numbers and names
    tools/mutants.py --jobs 4         so many mutants side by side (2 by default)
    tools/mutants.py --fresh          forget the results there are

Results are appended to target/mutants.jsonl as they come. A run that is started again goes on from
there, as long as the sources of the three crates are the same; else it starts anew.

Suites: `unit` (unit tests of store and engine), `lockstep` (its parts beside naive twins, at random),
`named` (named tests of store and engine), `random` (randomised whole-system tests of store and
engine, from a fixed seed), `sim` (the simulator: 40 short seeds), `small` (exhaustive small worlds).
A mutant that no suite has seen meets the deep ones: the simulator's standard run and the larger
small worlds. One that these do not see either is alive, and the exit status is 1; and so it is where
a suite sees a mutant that is listed as equivalent.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutant_list import ENGINE, EQUIVALENT, MUTANTS, STORE

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "mutants"
# A folder of its own: cargo takes packages of two workspaces for the same where their paths within it
# agree, and would go on with the mutants' builds in the other.
BUILD = ROOT / "target" / "mutants-build"
RESULTS = ROOT / "target" / "mutants.jsonl"
PACKAGES = ["statepages-store", "statepages-engine", "statepages-sim"]
SUITES = ["unit", "lockstep", "named", "random", "sim", "small"]
# What no other suite sees is counted apart.
EXPLORERS = {"sim", "small"}

SWITCH = """//! The switch of the mutants.
pub(crate) fn on(number: u32) -> bool {
    static ACTIVE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let read = || std::env::var("STATEPAGES_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    *ACTIVE.get_or_init(read) == number
}
"""


def sources():
    """The workspace's files, by path."""
    names = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    paths = sorted(name for name in names.decode().split("\0") if name and (ROOT / name).is_file())
    return {name: (ROOT / name).read_bytes() for name in paths}


def mutated(files):
    """The files with every mutant and the switch in them. Stops where a mutant's place is not found."""
    files = dict(files)
    names = [what for what, *_ in MUTANTS]
    wrong = [f"two mutants are called {what!r}" for what in set(names) if names.count(what) > 1]
    wrong += [f"no mutant is called {what!r}" for what in EQUIVALENT if what not in names]
    for number, (what, file, original, replacement) in enumerate(MUTANTS, 1):
        text = files[file].decode()
        count = text.count(original)
        if count != 1:
            wrong.append(f"mutant {number} ({what}): its place is found {count} times in {file}")
        elif "ON" not in replacement:
            wrong.append(f"mutant {number} ({what}): its text has no switch")
        replacement = replacement.replace("ON", f"crate::mutants::on({number})")
        files[file] = text.replace(original, replacement, 1).encode()
    if wrong:
        sys.exit("\n".join(wrong))
    for crate in (STORE, ENGINE):
        files[crate + "mutants.rs"] = SWITCH.encode()
        text = files[crate + "lib.rs"].decode()
        at = text.index("\nmod ")
        files[crate + "lib.rs"] = (text[:at] + "\nmod mutants;" + text[at:]).encode()
    return files


def write_copy(files):
    """Makes the copy hold these files, and touches none that is as it should be."""
    for name, content in files.items():
        path = COPY / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in sorted(COPY.rglob("*")):
        if path.is_file() and str(path.relative_to(COPY)) not in files:
            path.unlink()


def build():
    """Builds the copy's tests, answers {suite: [command]} and the deep commands."""
    packages = [word for package in PACKAGES for word in ("-p", package)]
    built = subprocess.run(
        ["cargo", "test", "--release", "--no-run", "--lib", "--tests", "--examples", "--message-format=json",
         *packages],
        cwd=COPY, env=dict(os.environ, CARGO_TARGET_DIR=str(BUILD)), stdout=subprocess.PIPE, check=True)
    binaries = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            package = message["package_id"].split("#")[0].rsplit("/", 1)[-1]
            binaries[package, message["target"]["kind"][0], message["target"]["name"]] = message["executable"]

    def test(package, name, *arguments):
        kind = "lib" if name == package.replace("-", "_") else "test"
        return [binaries[package, kind, name], *arguments]

    store, engine, sim = PACKAGES
    suites = {
        "unit": [
            test(store, "statepages_store", "--skip", "lockstep"),
            test(engine, "statepages_engine"),
        ],
        "lockstep": [test(store, "statepages_store", "lockstep")],
        "named": [
            test(store, "control_plane", "--skip", "world::", "--skip", "admission::"),
            test(engine, "scenarios"),
            test(engine, "drafts", "--skip", "drafts_change_nothing"),
            test(engine, "loads", "--skip", "faulty_loads"),
        ],
        "random": [
            test(engine, "workloads"),
            test(engine, "loads", "faulty_loads"),
            test(engine, "drafts", "drafts_change_nothing"),
            test(store, "control_plane", "world::", "admission::"),
        ],
        "sim": [test(sim, "simulation", "worlds_are_clean")],
        "small": [test(sim, "small_worlds", "the_smallest_worlds_end")],
    }
    deep = {
        "sim": [[binaries[sim, "example", "meetings"], "200", "20000"]],
        "small": [test(sim, "small_worlds", "no_new_state_appears")],
    }
    return suites, deep


class Suites:
    """Runs suites, each within a multiple of the time that it takes without a mutant.

    What is limited is processor time, so that a busy machine is not taken for a hanging test.
    """

    def __init__(self, commands, deep):
        self.commands, self.deep, self.seconds = commands, deep, {}
        self.clean, self.lock = set(), threading.Lock()

    def fails(self, suite, commands, number):
        """Whether one of the commands fails, or does not end."""
        limit = int(60 + 8 * self.seconds.get(suite, 300))
        # A fixed seed, and nothing kept or shrunk: a result is to be the same whatever ran before.
        environment = dict(
            os.environ, STATEPAGES_MUTANT=str(number), RUST_BACKTRACE="0", RUST_TEST_THREADS="1",
            PROPTEST_RNG_SEED="1", PROPTEST_MAX_SHRINK_ITERS="0", PROPTEST_DISABLE_FAILURE_PERSISTENCE="1")
        for command in commands:
            run = subprocess.run(
                ["bash", "-c", f'ulimit -t {limit}; exec "$@"', "bash", *command], cwd=COPY, env=environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if run.returncode != 0:
                return True
        return False

    def prove_clean(self):
        """Runs all suites but the deep ones without a mutant, and remembers how long they took."""
        for suite, commands in self.commands.items():
            begun = time.monotonic()
            if self.fails(suite, commands, 0):
                sys.exit(f"suite {suite} fails without a mutant")
            self.seconds[suite] = time.monotonic() - begun
            print(f"{suite}: {self.seconds[suite]:.0f} s without a mutant", flush=True)

    def deep_sees(self, suite, number):
        """Whether a deep suite fails with the mutant, and does not without it."""
        commands = self.deep[suite]
        if not self.fails("deep " + suite, commands, number):
            return False
        with self.lock:
            if suite not in self.clean and self.fails("deep " + suite, commands, 0):
                print(f"the deep suite {suite} fails without a mutant", flush=True)
                os._exit(1)
            self.clean.add(suite)
        return True

    def run(self, number):
        """What sees a mutant: {suite: ""|"x"|"deep"}."""
        seen = {suite: "x" * self.fails(suite, commands, number) for suite, commands in self.commands.items()}
        if not any(seen.values()) and MUTANTS[number - 1][0] not in EQUIVALENT:
            for suite in self.deep:
                if self.deep_sees(suite, number):
                    seen[suite] = "deep"
                    break
        return seen


def load(tree):
    """Results of an earlier run on the same sources, by the mutants' names."""
    if not RESULTS.is_file():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines() if line.endswith("}")]
    if not lines or lines[0].get("tree") != tree:
        return {}
    return {line["what"]: line for line in lines[1:]}


def row(number, result):
    what, file, *_ = MUTANTS[number - 1]
    marks = " | ".join(result["seen"][suite] for suite in SUITES)
    where = file.replace("crates/statepages-", "").replace("/src/", "/")
    return f"| {number} | {what} | `{where}` | {marks} |"


def judge(numbers, results):
    """The summary, and whether all is as it should be."""
    alive, refuted, explored, random_too = [], [], 0, 0
    for number in numbers:
        what = MUTANTS[number - 1][0]
        seen = {suite for suite, mark in results[what]["seen"].items() if mark}
        if what in EQUIVALENT:
            refuted += [number] * bool(seen)
            continue
        alive += [number] * (not seen)
        explored += bool(seen) and seen <= EXPLORERS
        random_too += bool(seen) and seen <= EXPLORERS | {"random"}
    equivalent = sum(MUTANTS[number - 1][0] in EQUIVALENT for number in numbers)
    summary = (
        f"{len(numbers)} mutants, {len(alive)} alive{': ' + str(alive) if alive else ''}, {equivalent} equivalent"
        f"{', of which suites see ' + str(refuted) if refuted else ''}. {explored} are seen by the simulator or the "
        f"small worlds alone; {random_too} by these or by randomised tests of the whole, and by no unit, lockstep "
        "or named test.")
    return summary, not alive and not refuted


def document(summary, lines):
    def wrap(text):
        return textwrap.fill(text, 160, break_long_words=False, break_on_hyphens=False)

    proofs = "\n".join(wrap(f"- *{what}*: {proof}") for what, proof in EQUIVALENT.items())
    (ROOT / "docs" / "mutants.md").write_text(
        "# Mutants\n\nOne deliberate fault at a time, and which suites see it (`x`; `deep`: only the simulator's "
        "standard run or the larger small worlds,\nwhich run where no other suite has seen the mutant). Written by "
        "`tools/mutants.py`, where the suites are described.\n\n"
        f"{wrap(summary)}\n\n" + "\n".join(lines) + f"\n\nEquivalent:\n\n{proofs}\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, help="mutants to run; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="mutants run side by side")
    parser.add_argument("--fresh", action="store_true", help="forget the results there are")
    parser.add_argument("--list", action="store_true", help="print numbers and names")
    wanted = parser.parse_args()
    for number in wanted.numbers:
        if not 1 <= number <= len(MUTANTS):
            parser.error(f"there are mutants 1 to {len(MUTANTS)}, and no {number}")
    return wanted


def main():
    wanted = arguments()
    if wanted.list:
        for number, (what, *_) in enumerate(MUTANTS, 1):
            print(number, what)
        return 0
    begun = time.monotonic()
    files = mutated(sources())
    digest = hashlib.sha256()
    for name, content in files.items():
        if name.startswith("crates/"):
            digest.update(name.encode() + b"\0" + content)
    tree = digest.hexdigest()
    results = {} if wanted.fresh else load(tree)
    if not results:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"tree": tree}) + "\n")
    numbers = wanted.numbers or list(range(1, len(MUTANTS) + 1))
    missing = [number for number in numbers if MUTANTS[number - 1][0] not in results]
    lock = threading.Lock()
    if missing:
        write_copy(files)
        suites = Suites(*build())
        print(f"built in {time.monotonic() - begun:.0f} s", flush=True)
        suites.prove_clean()

    def run(number):
        started = time.monotonic()
        result = {"what": MUTANTS[number - 1][0], "seen": suites.run(number)}
        result["seconds"] = round(time.monotonic() - started, 1)
        with lock:
            results[result["what"]] = result
            with RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{row(number, result)} {result['seconds']:.0f} s", flush=True)

    with ThreadPoolExecutor(wanted.jobs) as pool:
        list(pool.map(run, missing))
    lines = ["| # | what is wrong | where | " + " | ".join(SUITES) + " |", "| --- " * (3 + len(SUITES)) + "|"]
    lines += [row(number, results[MUTANTS[number - 1][0]]) for number in numbers]
    summary, good = judge(numbers, results)
    print(*lines, summary, f"{time.monotonic() - begun:.0f} s in all", sep="\n")
    if not wanted.numbers:
        document(summary, lines)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
