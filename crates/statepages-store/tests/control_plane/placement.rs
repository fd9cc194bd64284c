//! Placement: cut and keep agree, and what is kept can be resumed.

use proptest::prelude::*;
use statepages_page::{BlockSize, Boundary, Pages, Tokens};
use statepages_store::{
    Ahead, CheckpointInterval, Chunk, IntervalError, IntervalSnapped, KeepReason, Placement,
    Progress, Scope, Speculation, SuccessorRoom,
};

use crate::support::{at, block, tokens};

fn placement(interval: CheckpointInterval) -> Placement {
    Placement {
        block: block(),
        interval,
        scope: Scope::EVERY,
        room: SuccessorRoom::Tokens(0),
        speculation: Speculation::Off,
    }
}

fn grid(blocks: u32) -> CheckpointInterval {
    CheckpointInterval::Grid(Pages::new(blocks))
}

/// Runs a prefill by chunks and answers what is kept on the way.
fn prefill(
    placement: &Placement,
    start: u32,
    n: u32,
    demand: Option<Boundary>,
    mut chunk: impl FnMut() -> u32,
) -> Vec<(u32, KeepReason)> {
    let mut kept = Vec::new();
    let (mut position, mut last_kept) = (start, Boundary::from_raw(start));
    while position < n {
        let end = (position + chunk().max(1)).min(n);
        let chunk = Chunk { start: tokens(position), end: tokens(end), prompt: tokens(n), demand };
        let cut = placement.chunk_end(&chunk);
        assert!(position < cut.get() && cut.get() <= end, "a chunk always moves on (G5)");
        position = cut.get();
        let progress =
            Progress { at: cut, prompt: tokens(n), demand, last_kept, ahead: Ahead::Forward };
        if let Some(reason) = placement.keep(&progress) {
            last_kept = Boundary::from_raw(position);
            kept.push((position, reason));
        }
    }
    kept
}

/// What is kept, by definition and one position at a time.
fn expected(placement: &Placement, start: u32, n: u32, demand: Option<Boundary>) -> Vec<u32> {
    let (block, room) = match placement.room {
        SuccessorRoom::Tokens(room) => (placement.block.get(), room),
        SuccessorRoom::Never => return Vec::new(),
    };
    let ends = !matches!(placement.interval, CheckpointInterval::GridAndDemand(_));
    let anchor = (0..n).rev().find(|p| p % block == 0 && p + room <= n).filter(|_| ends);
    (start + 1..=n)
        .filter(|&p| match placement.interval {
            CheckpointInterval::Off => false,
            _ if p % block != 0 => false,
            // The next forward is a decode of one token.
            _ if p == n => ends && room <= 1,
            _ if p + room > n => false,
            CheckpointInterval::Grid(step) | CheckpointInterval::GridAndDemand(step)
                if p % (step.get() * block) == 0 =>
            {
                true
            }
            _ => Some(p) == anchor || Some(p) == demand.map(Boundary::get),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the chunks, exactly the boundaries of the definition are kept, for every length.
    #[test]
    fn cut_and_keep_agree_for_every_prompt_length(
        kind in 0..5u32,
        room in prop_oneof![Just(SuccessorRoom::Never), (0..6u32).prop_map(SuccessorRoom::Tokens)],
        demand in 0..20u32,
        start in 0..10u32,
        seed in any::<u64>(),
    ) {
        let interval = match kind {
            0 => CheckpointInterval::Off,
            1 => CheckpointInterval::AnchorsOnly,
            4 => CheckpointInterval::GridAndDemand(Pages::new(3)),
            kind => grid(kind * 2 - 3),
        };
        let placement = Placement { room, ..placement(interval) };
        let demand = (demand > 0).then(|| at(demand * 4));
        for n in start * 4 + 1..start * 4 + 90 {
            let mut state = seed | 1;
            let chunk = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                (state >> 60) as u32
            };
            let kept = prefill(&placement, start * 4, n, demand, chunk);
            // A class that emits interior state keeps the same for the same reasons, uncut.
            let whole =
                Chunk { start: tokens(start * 4), end: tokens(n), prompt: tokens(n), demand };
            let interior: Vec<_> =
                placement.interior(&whole).map(|(b, reason)| (b.get(), reason)).collect();
            let inside: Vec<_> = kept.iter().copied().filter(|k| k.0 < n).collect();
            prop_assert_eq!(interior, inside);
            let kept: Vec<u32> = kept.iter().map(|k| k.0).collect();
            prop_assert_eq!(&kept, &expected(&placement, start * 4, n, demand), "{} tokens", n);
            for boundary in kept {
                prop_assert!(boundary == n || boundary <= placement.resumable_cap(tokens(n)).get());
            }
        }
    }
}

#[test]
fn a1_a_prompt_that_ends_on_a_boundary_resumes_one_boundary_before_it() {
    for k in 1..6 {
        assert_eq!(placement(grid(1)).resumable_cap(tokens(k * 4)), at((k - 1) * 4));
        assert_eq!(placement(grid(1)).resumable_cap(tokens(k * 4 + 1)), at(k * 4));
    }
    assert_eq!(placement(grid(1)).resumable_cap(tokens(1)), at(0));
}

/// A2, A13: anchor for an identical prompt, prompt end for a continued one; both are kept.
#[test]
fn a2_a13_anchor_and_prompt_end_are_both_kept_and_the_end_costs_no_cut() {
    let kept = prefill(&placement(CheckpointInterval::AnchorsOnly), 0, 40, None, || 100);
    assert_eq!(kept, [(36, KeepReason::Anchor), (40, KeepReason::PromptEnd)]);
    let kept = prefill(&placement(CheckpointInterval::AnchorsOnly), 0, 43, None, || 100);
    assert_eq!(kept, [(40, KeepReason::Anchor)]);
    assert!(
        prefill(&placement(CheckpointInterval::AnchorsOnly), 0, 4, None, || 100)
            .contains(&(4, KeepReason::PromptEnd))
    );
    assert_eq!(prefill(&placement(CheckpointInterval::Off), 0, 40, Some(at(8)), || 3), []);
}

/// A3: a chunk that ends elsewhere keeps nothing.
#[test]
fn a3_only_an_exact_end_is_kept() {
    let placement = placement(grid(2));
    for position in 1..64 {
        let progress = Progress {
            at: tokens(position),
            prompt: tokens(65),
            demand: None,
            last_kept: at(0),
            ahead: Ahead::Forward,
        };
        assert_eq!(placement.keep(&progress).is_some(), position % 8 == 0 || position == 64);
    }
}

/// A14, B5: classes with other grids meet at the largest boundary that all of them have.
#[test]
fn a14_b5_classes_meet_at_a_joint_boundary() {
    let placement = placement(grid(1));
    let among = |all: &'static [u32]| {
        move |cap: Boundary| {
            let best = all.iter().copied().filter(|&p| p <= cap.get()).max();
            at(best.unwrap_or(0))
        }
    };
    let mut calls = 0;
    let mut kv = among(&[32, 64]);
    let mut state = among(&[32, 48]);
    let joint = placement.joint_boundary(at(64), &mut [&mut kv, &mut state]);
    assert_eq!(joint, at(32));
    let mut counted = |cap: Boundary| {
        calls += 1;
        among(&[48])(cap)
    };
    assert_eq!(placement.joint_boundary(at(64), &mut [&mut kv, &mut counted]), at(0));
    assert!(calls < 6);
    assert_eq!(placement.joint_boundary(at(40), &mut []), at(40));
}

#[test]
fn decode_spacing_follows_the_last_kept_boundary() {
    let rule = placement(grid(3));
    let after = |position: u32, last_kept: u32, ahead: Ahead| {
        rule.keep(&Progress {
            at: tokens(position),
            prompt: tokens(10),
            demand: None,
            last_kept: at(last_kept),
            ahead,
        })
    };
    assert_eq!(after(16, 8, Ahead::Forward), None);
    assert_eq!(after(20, 8, Ahead::Forward), Some(KeepReason::DecodeSpacing));
    assert_eq!(after(21, 8, Ahead::Forward), None);
    assert_eq!(after(24, 8, Ahead::Forward), Some(KeepReason::DecodeSpacing));
    assert_eq!(after(20, 8, Ahead::Nothing), None, "not for a request that stops on this step");
    let anchors = placement(CheckpointInterval::AnchorsOnly);
    let far = Progress {
        at: tokens(400),
        prompt: tokens(10),
        demand: None,
        last_kept: at(0),
        ahead: Ahead::Forward,
    };
    assert_eq!(anchors.keep(&far), None);
    for (room, speculation, kept) in [
        (SuccessorRoom::Tokens(0), Speculation::On, true),
        (SuccessorRoom::Tokens(1), Speculation::Off, true),
        (SuccessorRoom::Tokens(1), Speculation::On, false),
        (SuccessorRoom::Tokens(2), Speculation::Off, false),
        (SuccessorRoom::Never, Speculation::Off, false),
    ] {
        let rule = Placement { room, speculation, ..rule };
        assert_eq!(rule.keep(&far).is_some(), kept, "{room:?} {speculation:?}");
    }
}

#[test]
fn the_interval_flag_is_snapped_down_with_a_warning_and_refused_by_name() {
    let block = BlockSize::new(256).unwrap();
    let parse = |tokens| CheckpointInterval::parse(tokens, block);
    assert_eq!(parse(8192), Ok((grid(32), None)));
    assert_eq!(parse(8200), Ok((grid(32), Some(IntervalSnapped { asked: 8200, used: 8192 }))));
    assert_eq!(parse(0), Ok((CheckpointInterval::Off, None)));
    assert_eq!(parse(-1), Ok((CheckpointInterval::AnchorsOnly, None)));
    assert_eq!(parse(-2), Err(IntervalError::OutOfRange { got: -2 }));
    assert_eq!(parse(1 << 40), Err(IntervalError::OutOfRange { got: 1 << 40 }));
    assert_eq!(parse(255), Err(IntervalError::BelowBlock { got: 255, block: 256 }));
    let text = parse(-7).unwrap_err().to_string();
    assert!(text.contains("expected -1, 0 or a positive") && text.contains("-7"), "{text}");
}

#[test]
fn positions_near_the_end_of_u32_do_not_wrap() {
    let rule = placement(grid(1 << 20));
    let n = Tokens::new(u32::MAX);
    let start = Tokens::new(u32::MAX - 2);
    let chunk = Chunk { start, end: n, prompt: n, demand: None };
    assert_eq!(rule.chunk_end(&chunk), n);
}
