#!/usr/bin/env python3
"""Mutants: one deliberate fault at a time, and which tests see it.

Every mutant is compiled into one copy of the workspace, behind `crate::mutants::on(N)`, which reads
the environment; so the suites are built once and run once per mutant. Usage:

    tools/mutants.py            run all mutants, write docs/mutants.md
    tools/mutants.py 3 17       run these only, print the table

Suites: `unit` (unit tests of the store), `lockstep` (its parts beside naive twins, at random), `named` (named tests of store and engine),
`random` (randomised whole-system tests of store and engine), `sim` (the simulator), `small`
(exhaustive small worlds). A mutant that no suite sees is alive, and the exit status is 1.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "mutants"
STORE = "crates/statepages-store/src/"
ENGINE = "crates/statepages-engine/src/"
SECONDS_MAX = 120

# (what is wrong, file, original, mutated). `ON` stands for the switch.
MUTANTS = [
    ("drafts that were rejected stay scheduled", ENGINE + "settle.rs",
     "        self.control.rewind(&running.residency, computed);\n",
     "        if !ON { self.control.rewind(&running.residency, computed); }\n"),
    ("the token after the drafts counts as computed", ENGINE + "settle.rs",
     "let computed = sequence.len() - Tokens::new(1);",
     "let computed = (sequence.len() - Tokens::new(u32::from(!ON))).min(row.end());"),
    ("placement is asked about rejected drafts", ENGINE + "settle.rs",
     "running.place.unasked = Some(computed);",
     "running.place.unasked = Some(if ON { row.end().min(keys.len()) } else { computed });"),
    ("drafts run past the pages of their request", ENGINE + "build.rs",
     "drafts.truncate(held - end.index());", "if ON { break; }\n                    drafts.truncate(held - end.index());"),
    ("drafts take the budget of no one in particular", ENGINE + "build.rs",
     "let most = budget.left().min(", "let most = if ON { Tokens::new(9) } else { budget.left() }.min("),
    ("a draft is taken for the token that it guessed", ENGINE + "settle.rs",
     "for &token in tokens {\n            ended",
     "let guessed: Vec<u32> = if ON { drafts.iter().copied().take(tokens.len()).collect() } else { Vec::new() };\n        for (at, &token) in tokens.iter().enumerate() {\n            let token = guessed.get(at).copied().unwrap_or(token);\n            ended"),
    ("a live page is retired", STORE + "control.rs",
     "Some(top) if self.pool.shares(top) > 0 => Retire::Busy(top),",
     "Some(top) if !ON && self.pool.shares(top) > 0 => Retire::Busy(top),"),
    ("the pool shrinks below what requests were taken for", ENGINE + "engine.rs",
     "above.then(|| self.control.retire_free_top())", "(ON || above).then(|| self.control.retire_free_top())"),
    ("blocks of equal tokens and key are one, whatever is before them", STORE + "index.rs",
     "            (self.entries.key(page.raw()), parent, domain, tokens)",
     "            (self.entries.key(page.raw()), if ON { [0; 16] } else { parent }, domain, tokens)"),
    ("a state is filed under the key of any block", STORE + "batch.rs",
     "if reported && !self.index.is_block_of(own, key) {", "if !ON && reported && !self.index.is_block_of(own, key) {"),
    ("a boundary filed before its block is reported hangs on nothing", STORE + "control.rs",
     "let filed = self.pending.with_key(key).is_some() ||",
     "let filed = (!ON && self.pending.with_key(key).is_some()) ||"),
    ("a store handed out before its block is reported hangs on nothing", STORE + "control.rs",
     "self.store.is_copying(key);\n        if filed",
     "(!ON && self.store.is_copying(key));\n        if filed"),
    ("a block published twice forgets what was filed under its key", STORE + "index.rs",
     "            trace = self.trace(holder);\n", "            if !ON { trace = self.trace(holder); }\n"),
    ("a collision leaves its loser cached", STORE + "control.rs",
     "            self.unindex(holder);\n            self.drop_content(holder);",
     "            self.unindex(holder);\n            if !ON { self.drop_content(holder); }"),
    ("a chain forgets who was before its next", STORE + "key_table.rs",
     "self.nodes[next as usize].before = before;", "if !ON { self.nodes[next as usize].before = before; }"),
    ("a boundary that waits for its slot is dropped", STORE + "batch.rs",
     "                self.pending.insert(slot, entry);\n                continue;",
     "                if !ON { self.pending.insert(slot, entry); }\n                continue;"),
    ("a parked request's failed restore is nobody's", ENGINE + "build.rs",
     "let residents = self.running.values().chain(self.parked.values());",
     "let residents = self.running.values().chain(self.parked.values().take(if ON { 0 } else { usize::MAX }));"),
    ("a load lands in the middle of its restore", ENGINE + "loads.rs",
     "                || flight.restored.contains(&parked.admission)", "                || (!ON && flight.restored.contains(&parked.admission))"),
    ("a load that arrived is called off as late", ENGINE + "loads.rs",
     "matches!(parked.load.stage, LoadStage::Flying) && parked.since < deadline",
     "(ON || matches!(parked.load.stage, LoadStage::Flying)) && parked.since < deadline"),
    ("a failed batch of an earlier residency costs the present one", ENGINE + "settle.rs",
     "        if self.running.get(&admission) != Some(&row.request) {\n            return;",
     "        if if ON { !self.running.values().any(|id| *id == row.request) } else { self.running.get(&admission) != Some(&row.request) } {\n            return;"),
    ("a spoilt slot of a flying load is free at once", ENGINE + "loads.rs",
     "let flying = matches!(stage, LoadStage::Flying);", "let flying = !ON && matches!(stage, LoadStage::Flying);"),
    ("a late load's memory is free at once", ENGINE + "loads.rs",
     "            let residency = self.unload(request);\n            self.drain(load, residency);\n        }\n    }\n\n    /// Lands",
     "            let residency = self.unload(request);\n            if ON { self.control.release(residency); } else { self.drain(load, residency); }\n        }\n    }\n\n    /// Lands"),
    ("a page goes to an older request while a batch still writes it", ENGINE + "build.rs",
     "if answer == PageAnswer::Taken && !self.flights.is_empty() {", "if !ON && answer == PageAnswer::Taken && !self.flights.is_empty() {"),
    ("a request that gave its pages up is planned all the same", ENGINE + "build.rs",
     "            if !self.running.contains_key(&admission) {\n                continue;",
     "            if !ON && !self.running.contains_key(&admission) {\n                continue;"),
    ("victims set aside for a declined plan come back in another order", STORE + "room.rs",
     "            for page in pages.drain(left..).rev() {",
     "            let mut own: Vec<PageId> = pages.drain(left..).collect();\n            if ON { own.reverse(); }\n            for page in own.into_iter().rev() {"),
    ("a cancelled move frees a slot that is in flight", STORE + "slots.rs",
     "        if order == BackendOrder::Unordered && entry.in_flight > 0 {\n            entry.state = State::Fenced { moved: None };\n        } else {",
     "        if !ON && order == BackendOrder::Unordered && entry.in_flight > 0 {\n            entry.state = State::Fenced { moved: None };\n        } else {"),
    ("a new tenant starts with the old one's distrust", STORE + "slots.rs",
     "            bytes: SlotBytes::Known,\n            scheduled: at,",
     "            bytes: if ON { self.slots[id as usize].bytes } else { SlotBytes::Known },\n            scheduled: at,"),
    ("a COPYING record is found by a lookup", STORE + "checkpoint.rs",
     "        self.ready.get(key.raw())\n",
     "        if ON { self.ready.get(key.raw()).or_else(|| self.copying.get(key.raw())) } else { self.ready.get(key.raw()) }\n"),
    ("a failed batch publishes its stores", STORE + "batch.rs",
     "Outcome::Done if proven => self.publish_record(record),",
     "_ if ON || (outcome == Outcome::Done && proven) => self.publish_record(record),"),
    ("a store is published before its forward is reported", STORE + "batch.rs",
     "self.slots.has_reported(slot, tenancy, boundary.tokens())",
     "ON || self.slots.has_reported(slot, tenancy, boundary.tokens())"),
    ("a receipt returns no pin", STORE + "batch.rs",
     "            self.unpin(record);\n",
     "            if !ON { self.unpin(record); }\n"),
    ("slots of a failed batch stay trusted", STORE + "batch.rs",
     "            if outcome == Outcome::Failed {\n                self.slots.poison",
     "            if outcome == Outcome::Failed && !ON {\n                self.slots.poison"),
    ("pages of a fenced slot are lost", STORE + "batch.rs",
     "                    self.free_pages(&mut pages);\n",
     "                    if !ON { self.free_pages(&mut pages); }\n"),
    ("a boundary is stored though its slot moved on", STORE + "batch.rs",
     "let moved_on = self.slots.scheduled(slot) != boundary.tokens();",
     "let moved_on = !ON && self.slots.scheduled(slot) != boundary.tokens();"),
    ("a store reads a slot that the same batch restores", STORE + "batch.rs",
     "if moved_on || self.restores.contains(slot) {",
     "if moved_on || (!ON && self.restores.contains(slot)) {"),
    ("a boundary whose block is gone is stored", STORE + "batch.rs",
     "if self.slots.computed(slot) >= boundary.tokens() && self.index.page(key).is_none() {",
     "if !ON && self.slots.computed(slot) >= boundary.tokens() && self.index.page(key).is_none() {"),
    ("a key in writing is written twice", STORE + "batch.rs",
     "if self.store.lookup(key).is_some() || self.store.is_copying(key) {",
     "if self.store.lookup(key).is_some() || (!ON && self.store.is_copying(key)) {"),
    ("the bound on COPYING units is ignored", STORE + "batch.rs",
     "if over > self.copying_max() ||", "if (!ON && over > self.copying_max()) ||"),
    ("a store takes the pages that residents need next", STORE + "batch.rs",
     "!self.image_fits(0, 0, None)", "(!ON && !self.image_fits(0, 0, None))"),
    ("a slot with unknown bytes is stored", STORE + "batch.rs",
     "if self.slots.bytes(slot) == SlotBytes::Unknown {",
     "if !ON && self.slots.bytes(slot) == SlotBytes::Unknown {"),
    ("a store whose own block went for its units goes on", STORE + "batch.rs",
     "if self.pending.first() != Some(slot) {", "if !ON && self.pending.first() != Some(slot) {"),
    ("an unordered backend's slot is not waited for", STORE + "batch.rs",
     "self.order() == BackendOrder::Unordered && !self.slots.is_idle(slot)",
     "!ON && self.order() == BackendOrder::Unordered && !self.slots.is_idle(slot)"),
    ("a record becomes READY without its block", STORE + "batch.rs",
     "if self.store.is_wanted(record) && self.index.page(key).is_none() {",
     "if !ON && self.store.is_wanted(record) && self.index.page(key).is_none() {"),
    ("a superseded boundary is not counted", STORE + "batch.rs",
     "            self.counters.superseded += 1;\n", "            self.counters.superseded += u64::from(!ON);\n"),
    ("a stored scratch slot is never freed", STORE + "batch.rs",
     "if entry.source == Source::Scratch {", "if !ON && entry.source == Source::Scratch {"),
    ("the slot that a store reads is not fenced", STORE + "batch.rs",
     "StoreTicket { record, proof });\n        self.touch(slot, batch, Access::Read, cargo);",
     "StoreTicket { record, proof });\n        if !ON { self.touch(slot, batch, Access::Read, cargo); }"),
    ("a failed restore leaves its slot trusted", STORE + "batch.rs",
     "            self.restores_in_flight += 1;\n            self.touch(slot, batch, Access::Write, cargo);",
     "            self.restores_in_flight += 1;\n            self.touch(slot, batch, if ON { Access::Read } else { Access::Write }, cargo);"),
    ("the one door out leaves the queued restore", STORE + "control.rs",
     "        self.cancel_restore(slot);\n        self.cancel_relocations_into(slot);",
     "        if !ON { self.cancel_restore(slot); }\n        self.cancel_relocations_into(slot);"),
    ("the one door out leaves the pending boundary", STORE + "control.rs",
     "if let Some(entry) = self.pending.remove(slot) {",
     "if !ON && let Some(entry) = self.pending.remove(slot) {"),
    ("a cancelled restore keeps its pin", STORE + "control.rs",
     "            self.unpin(record);\n",
     "            if !ON { self.unpin(record); }\n"),
    ("a reset lets residents publish on", STORE + "control.rs",
     "        self.era += 1;\n", "        self.era += u64::from(!ON);\n"),
    ("a landed load leaves the older restore queued", STORE + "control.rs",
     "        self.cancel_restore(slot);\n        self.slots.set_scheduled(slot, to.tokens());",
     "        if !ON { self.cancel_restore(slot); }\n        self.slots.set_scheduled(slot, to.tokens());"),
    ("the gate promises one page too many", STORE + "control.rs",
     "Pages::new(self.pool.free() + self.store.evictable_units(None))",
     "Pages::new(self.pool.free() + self.store.evictable_units(None) + u32::from(ON))"),
    ("a chain's head is freed before its tail", STORE + "control.rs",
     "while let Some(page) = pages.pop() {",
     "while let Some(page) = if !ON { pages.pop() } else if pages.is_empty() { None } else { Some(pages.remove(0)) } {"),
    ("a findable page is freed as vacant", STORE + "control.rs",
     "if block.is_some() { Afterlife::Cached }", "if block.is_some() && !ON { Afterlife::Cached }"),
    ("a block published twice keeps its older page cached", STORE + "control.rs",
     "to: page });\n                self.drop_content(from);",
     "to: page });\n                if !ON { self.drop_content(from); }"),
    ("a slot in flight on an unordered backend is free at once", STORE + "control.rs",
     "match self.slots.release(slot, self.config.order) {",
     "match self.slots.release(slot, if ON { BackendOrder::Ordered } else { self.config.order }) {"),
    ("the gate counts the record it will read as evictable", STORE + "admit.rs",
     "self.store.evictable_units(record) {", "self.store.evictable_units(if ON { None } else { record }) {"),
    ("an admission is let in one page short", STORE + "admit.rs",
     "if taken > self.pool.free() +", "if taken > u32::from(ON) + self.pool.free() +"),
    ("the gate forgets cached pages it will claim", STORE + "admit.rs",
     "let taken = fresh.get() + u32::try_from(revived)",
     "let revived = if ON { 0 } else { revived };\n        let taken = fresh.get() + u32::try_from(revived)"),
    ("a queued restore has no pin", STORE + "admit.rs",
     "            self.store.pin(record);\n", "            if !ON { self.store.pin(record); }\n"),
    ("a promised boundary is replaced by a later one", STORE + "admit.rs",
     "Ok(Found { hit: Hit { resumable: gated, ..found.hit }, record })",
     "if ON { return Ok(found); }\n        Ok(Found { hit: Hit { resumable: gated, ..found.hit }, record })"),
    ("a prompt on a boundary resumes at its own end", STORE + "placement.rs",
     "self.block.boundary_floor(n.saturating_sub(Tokens::new(1)))",
     "self.block.boundary_floor(n.saturating_sub(Tokens::new(u32::from(!ON))))"),
    ("an equal key is taken for an equal block", STORE + "index.rs",
     "(self.block(page) == Some(*block)).then_some(page)",
     "(ON || self.block(page) == Some(*block)).then_some(page)"),
    ("no page is left for residents behind a store", STORE + "room.rs",
     "u64::from(self.residents + joining)", "u64::from(self.residents + joining) * u64::from(!ON)"),
    ("a lost block leaves its record", STORE + "room.rs",
     "match self.store.unindex(key, &mut self.pool) {",
     "match if ON { Unindexed::Nothing } else { self.store.unindex(key, &mut self.pool) } {"),
    ("a given-up page stays in the index", STORE + "room.rs",
     "self.policy.notice(&Notice::Uncached { page });\n        self.unindex(page);\n",
     "self.policy.notice(&Notice::Uncached { page });\n        if !ON { self.unindex(page); }\n"),
    ("a plan stops one page short", STORE + "room.rs",
     "while gained < units {", "while gained + u32::from(ON) < units {"),
    ("a page given up with nothing on its key stays in the index", STORE + "room.rs",
     "            let (key, trace) = self.index.remove(page)", "            if ON { continue; }\n            let (key, trace) = self.index.remove(page)"),
    ("a run of victims leaves out the oldest", STORE + "victim.rs",
     "pages.extend(view.pages().take(most));", "pages.extend(view.pages().skip(usize::from(ON)).take(most));"),
    ("a policy that does not pay offers pages all the same", STORE + "value/mod.rs",
     "        if pays {", "        if pays || ON {"),
    ("a record is evictable while one reader is left", STORE + "checkpoint.rs",
     "                *pins -= 1;\n                if *pins == 0 {\n                    self.recency",
     "                *pins -= 1;\n                if *pins == u32::from(ON) {\n                    self.recency"),
    ("EVICTING ends with the first of its readers", STORE + "checkpoint.rs",
     "State::EvictingReaders { pins, .. } if *pins > 1 => *pins -= 1,",
     "State::EvictingReaders { pins, .. } if *pins > 1 && !ON => *pins -= 1,"),
    ("a record that is read is freed with its key", STORE + "checkpoint.rs",
     "            State::Ready { pins: 0 } => {\n                self.recency.remove(index);\n                self.count",
     "            State::Ready { pins } if pins == 0 || ON => {\n                if pins == 0 { self.recency.remove(index); }\n                self.count"),
    ("a record that is written is freed with its key", STORE + "checkpoint.rs",
     "            State::Copying => {\n                record.state = State::EvictingWriter",
     "            State::Copying if ON => { self.count(cause); self.end(index, pool); }\n            State::Copying => {\n                record.state = State::EvictingWriter"),
    ("word of an old tenancy reaches the new tenant", STORE + "slots.rs",
     "if entry.tenancy != tenancy || entry.state == State::Free {",
     "if (!ON && entry.tenancy != tenancy) || entry.state == State::Free {"),
    ("a fence ends one batch too early", STORE + "slots.rs",
     "if entry.in_flight == 0 && matches!(entry.state, State::Fenced",
     "if entry.in_flight <= u32::from(ON) && matches!(entry.state, State::Fenced"),
    ("a report of failed bytes proves a store", STORE + "slots.rs",
     "            && entry.bytes == SlotBytes::Known\n            && entry.computed",
     "            && (ON || entry.bytes == SlotBytes::Known)\n            && entry.computed"),
    ("another tenant's report proves a store", STORE + "slots.rs",
     "        entry.tenancy == tenancy\n            && entry.state", "        (ON || entry.tenancy == tenancy)\n            && entry.state"),
    ("unknown bytes do not follow their tenant", STORE + "slots.rs",
     "                self.poison(to, tenancy);\n", "                if !ON { self.poison(to, tenancy); }\n"),
    ("decode keeps a boundary at every block", STORE + "placement.rs",
     "(far && exact &&", "((far || ON) && exact &&"),
    ("a shared page is freed by its first owner", STORE + "pool.rs",
     "        if *shares > 1 {", "        if *shares > 1 && !ON {"),
    ("a claim takes no share", STORE + "pool.rs",
     "*shares = shares.checked_add(1)", "*shares = shares.checked_add(u32::from(!ON))"),
    ("a boundary is drained twice", STORE + "batch.rs",
     "        self.pending.remove(slot);\n        if ", "        if !ON { self.pending.remove(slot); }\n        if "),
    ("a load lands on pages that a batch in flight touches", ENGINE + "loads.rs",
     "        if touched {", "        if touched && !ON {"),
    ("a called-off load's memory is freed at once", ENGINE + "engine.rs",
     "Owed::Drain(load, residency) => self.drain(load, residency),",
     "Owed::Drain(load, residency) => { if ON { self.control.release(residency); } else { self.drain(load, residency); } }"),
    ("a parked request keeps a slot that a failed restore spoilt", ENGINE + "settle.rs",
     "            self.unload_spoilt(admission);\n", "            if !ON { self.unload_spoilt(admission); }\n"),
    ("a batch of an earlier residency is taken for the present one's", ENGINE + "settle.rs",
     "            if self.running.get(&admission) != Some(&row.request) {\n                continue;",
     "            if if ON { !self.running.values().any(|id| *id == row.request) } else { self.running.get(&admission) != Some(&row.request) } {\n                continue;"),
    ("a boundary reached in flight is never filed", ENGINE + "build.rs",
     "            self.ask_placement(part.request);\n", "            if !ON { self.ask_placement(part.request); }\n"),
    ("an unordered backend's request joins while it flies", ENGINE + "build.rs",
     "BackendOrder::Unordered => self.control.in_flight(residency) == 0,",
     "BackendOrder::Unordered => ON || self.control.in_flight(residency) == 0,"),
]

# Mutants that change nothing, each with its proof.
EQUIVALENT = {
    "a record becomes READY without its block":
        "The branch cannot be taken: it stands behind another guard. A record that is still wanted at its "
        "receipt is COPYING, so its key has not left the index since the drain (`lose_key` would have made "
        "it EVICTING). At the drain the key was in the index, or else its forward was not yet reported "
        "(`judge`: Unfiled). In the second case the receipt publishes only after `has_reported`, that is "
        "after `advance` by the same tenant has put the block into the index. So the index always has it.",
}

SWITCH = '''//! The switch of the mutants.
pub(crate) fn on(number: u32) -> bool {
    static ACTIVE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let read = || std::env::var("STATEPAGES_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    *ACTIVE.get_or_init(read) == number
}
'''


def build():
    """Writes the mutated copy, builds its tests, answers {suite: [command]}."""
    if COPY.exists():
        shutil.rmtree(COPY)
    files = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    for name in files.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, COPY / name)
    for number, (what, file, original, mutated) in enumerate(MUTANTS, 1):
        text = (COPY / file).read_text()
        count = text.count(original)
        if count != 1:
            sys.exit(f"mutant {number} ({what}): its place is found {count} times in {file}")
        mutated = mutated.replace("ON", f"crate::mutants::on({number})")
        (COPY / file).write_text(text.replace(original, mutated))
    for crate in (STORE, ENGINE):
        (COPY / crate / "mutants.rs").write_text(SWITCH)
        lib = COPY / crate / "lib.rs"
        text = lib.read_text()
        at = text.index("\nmod ")
        lib.write_text(text[:at] + "\nmod mutants;" + text[at:])
    packages = ["-p", "statepages-store", "-p", "statepages-engine", "-p", "statepages-sim"]
    # A folder of its own: cargo takes packages of two workspaces for the same where their paths within
    # it agree, and would go on with the mutants' builds in the other.
    environment = dict(os.environ, CARGO_TARGET_DIR=str(ROOT / "target" / "mutants-build"))
    built = subprocess.run(
        ["cargo", "test", "--release", "--no-run", "--lib", "--tests", "--message-format=json", *packages],
        cwd=COPY, env=environment, stdout=subprocess.PIPE, check=True)
    binaries = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            package = message["package_id"].split("#")[0].rsplit("/", 1)[-1]
            binaries[package, message["target"]["name"]] = message["executable"]
    store, engine, sim = "statepages-store", "statepages-engine", "statepages-sim"
    return {
        "unit": [[binaries[store, "statepages_store"], "--skip", "lockstep"]],
        "lockstep": [[binaries[store, "statepages_store"], "lockstep"]],
        "named": [
            [binaries[store, "control_plane"], "--skip", "world::", "--skip", "admission::"],
            [binaries[engine, "scenarios"]],
            [binaries[engine, "drafts"], "--skip", "drafts_change_nothing"],
            [binaries[engine, "loads"], "--skip", "faulty_loads"],
        ],
        "random": [
            [binaries[store, "control_plane"], "world::", "admission::"],
            [binaries[engine, "loads"], "faulty_loads"],
            [binaries[engine, "workloads"]],
            [binaries[engine, "drafts"], "drafts_change_nothing"],
        ],
        "sim": [[binaries[sim, "simulation"], "worlds_are_clean"]],
        "small": [[binaries[sim, "small_worlds"], "the_smallest_worlds_end"]],
    }


def fails(commands, number):
    environment = dict(os.environ, STATEPAGES_MUTANT=str(number), RUST_BACKTRACE="0")
    for command in commands:
        try:
            run = subprocess.run(
                command, cwd=COPY, env=environment, timeout=SECONDS_MAX,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return True
        if run.returncode != 0:
            return True
    return False


def main():
    wanted = [int(argument) for argument in sys.argv[1:]] or range(1, len(MUTANTS) + 1)
    suites = build()
    for suite, commands in suites.items():
        if fails(commands, 0):
            sys.exit(f"suite {suite} fails without a mutant")
    header = "| # | what is wrong | where | " + " | ".join(suites) + " |"
    lines = [header, "| --- " * (3 + len(suites)) + "|"]
    alive, late = [], 0
    for number in wanted:
        what, file, _, _ = MUTANTS[number - 1]
        seen = {suite: fails(commands, number) for suite, commands in suites.items()}
        if not any(seen.values()) and what not in EQUIVALENT:
            alive.append(number)
        late += any(seen.values()) and not seen["unit"] and not seen["named"]
        marks = " | ".join("x" if seen[suite] else "" for suite in suites)
        where = file.replace("crates/statepages-", "").replace("/src/", "/")
        lines.append(f"| {number} | {what} | `{where}` | {marks} |")
        print(lines[-1], flush=True)
    summary = (f"{len(wanted)} mutants, {len(alive)} alive"
               f"{': ' + str(alive) if alive else ''}, {len(EQUIVALENT)} equivalent; {late} are seen by no unit or named test, "
               "only by a randomised run (of a part beside its twin, or of the whole), the simulator or the small worlds.")
    print(summary)
    if len(sys.argv) == 1:
        intro = ("# Mutants\n\nOne deliberate fault at a time, and which suites see it (`x`). Written by "
                 "`tools/mutants.py`; the suites are described there.\n\n")
        proofs = "\n".join(f"- *{what}*: {proof}" for what, proof in EQUIVALENT.items())
        (ROOT / "docs" / "mutants.md").write_text(
            f"{intro}{summary}\n\n" + "\n".join(lines) + f"\n\nEquivalent:\n\n{proofs}\n")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
