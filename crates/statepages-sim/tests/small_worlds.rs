//! Every state of small worlds, and one injected bug per kind of invariant.

use std::collections::BTreeMap;

use statepages_sim::{
    Explored, Small, SmallBug, TRANSITIONS, explore, larger_worlds, small_worlds,
};

fn whole(name: &str, small: &Small) -> Explored {
    let explored = explore(small).unwrap_or_else(|broken| panic!("{name}: {broken:#?}"));
    assert!(explored.complete, "{name}: {} states and no end", explored.states);
    explored
}

#[test]
fn the_smallest_worlds_end() {
    for (name, small) in small_worlds() {
        whole(name, &small);
    }
}

#[test]
fn no_new_state_appears_and_every_transition_is_taken() {
    let mut reached = BTreeMap::new();
    for (name, small) in small_worlds().into_iter().chain(larger_worlds()) {
        for (transition, count) in whole(name, &small).reached {
            *reached.entry(transition).or_insert(0) += count;
        }
    }
    let missing: Vec<_> = TRANSITIONS.iter().filter(|&name| !reached.contains_key(name)).collect();
    assert!(missing.is_empty(), "never taken: {missing:?}");
}

#[test]
fn every_injected_bug_is_found() {
    let (_, base) = larger_worlds().swap_remove(0);
    for (bug, audit) in [
        (SmallBug::FailedIsDone, "ready:"),
        (SmallBug::SkipRestores, "read:"),
        (SmallBug::SwapPieces, "ready:"),
        (SmallBug::FileAhead, "ready:"),
        (SmallBug::KeepResidency, "leak:"),
        (SmallBug::BreakOrder, "read:"),
    ] {
        let small = Small { pages: 8, units: 2, prefixes: &[1, 1], bug: Some(bug), ..base };
        let broken = explore(&small).expect_err("a bug is seen");
        assert!(broken.what.contains(audit), "{bug:?}: {} by {:?}", broken.what, broken.steps);
    }
}
