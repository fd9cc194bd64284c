//! A short simulation, and one injected bug per kind of audit.

use statepages_sim::{Bug, Setup, Tally, attempt, shrink};

#[test]
fn worlds_are_clean() {
    let mut tally = Tally::default();
    let mut resumed = 0;
    for seed in 0..40 {
        match attempt(&Setup::of(seed), 3_000) {
            Ok(report) => {
                tally.add(&report.tally);
                resumed += report.resumed;
            }
            Err(failure) => panic!("seed {seed}: {:#?}", shrink(*failure)),
        }
    }
    assert!(resumed > 0, "{}", tally.table());
}

/// Which word the failure starts with says which audit saw the bug.
fn seen(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::SkipRestores => &["slot:"],
        Bug::TornIsDone => &["slot:", "ready:"],
        Bug::WriteReady => &["ready:", "slot:"],
        Bug::WriteLive => &["page:"],
        Bug::OneTenant => &["page:", "slot:", "ready:"],
        Bug::SilentLoads => &["leak:"],
    }
}

#[test]
fn every_injected_bug_is_seen_and_shrinks() {
    for bug in Bug::ALL {
        let failure = (0..60)
            .find_map(|seed| {
                let mut setup = Setup::of(seed).with(bug);
                setup.failing = 10;
                attempt(&setup, 2_000).err()
            })
            .unwrap_or_else(|| panic!("{bug:?} is seen by no audit"));
        let sees = |what: &str| seen(bug).iter().any(|audit| what.starts_with(audit));
        assert!(sees(&failure.what), "{bug:?}: {}", failure.what);
        let before = failure.acts.len();
        let small = shrink(*failure);
        assert!(small.acts.len() <= before.min(60), "{bug:?}: {} acts", small.acts.len());
    }
}

/// Reports hold a digest of every operation of every batch.
#[test]
fn two_replicas_fed_equal_events_emit_equal_op_logs() {
    for seed in 0..12 {
        let setup = Setup::of(seed);
        let (one, other) = (attempt(&setup, 2_000), attempt(&setup, 2_000));
        assert_eq!(one, other);
        let elsewhere = attempt(&Setup::of(seed + 100), 2_000);
        assert_ne!(one.unwrap().log, elsewhere.unwrap().log);
    }
}
