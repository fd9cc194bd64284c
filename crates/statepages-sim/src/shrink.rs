//! A failing run, caught, and shrunk to a short list of stimuli.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::run::{Report, replay, run};
use crate::setup::{Act, Setup};

/// Reruns that shrinking may take.
const RERUNS_MAX: u32 = 400;

/// A run that broke an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The world.
    pub setup: Setup,
    /// What was broken.
    pub what: String,
    /// Stimuli up to the failure, in order; shrunk where that was asked for.
    pub acts: Vec<Act>,
}

/// Runs a world and catches its failure.
pub fn attempt(setup: &Setup, events: u64) -> Result<Report, Box<Failure>> {
    let mut acts = Vec::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(setup, events, &mut acts)));
    outcome.map_err(|payload| {
        Box::new(Failure { setup: setup.clone(), what: text(payload.as_ref()), acts })
    })
}

/// Drops stimuli for as long as the run still fails, whichever way.
#[must_use]
pub fn shrink(failure: Failure) -> Failure {
    let Failure { setup, mut what, mut acts } = failure;
    let mut reruns = 0;
    let mut size = acts.len().div_ceil(2);
    while size > 0 && reruns < RERUNS_MAX {
        let mut at = 0;
        let mut dropped = false;
        while at < acts.len() && reruns < RERUNS_MAX {
            let mut fewer = acts.clone();
            fewer.drain(at..(at + size).min(acts.len()));
            reruns += 1;
            match catch_unwind(AssertUnwindSafe(|| replay(&setup, &fewer))) {
                Ok(_) => at += size,
                Err(payload) => {
                    what = text(payload.as_ref());
                    acts = fewer;
                    dropped = true;
                }
            }
        }
        if size == 1 && !dropped {
            break;
        }
        size = if size == 1 { 1 } else { size / 2 };
    }
    Failure { setup, what, acts }
}

fn text(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_else(|| "a panic without text".to_owned())
}
