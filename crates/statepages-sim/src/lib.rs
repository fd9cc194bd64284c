//! The production control plane, scheduler, loop and copy planner under every fault there is.
//!
//! [`attempt`] runs one seed's world over a faulty device and a faulty connector and audits it after
//! each event; [`shrink`] cuts a failing run down to a short list of stimuli. No clock, no thread.

mod bench;
mod device;
mod far;
mod mirror;
mod oracle;
mod random;
mod residents;
mod run;
mod setup;
mod shrink;
mod small;
mod tally;

pub use bench::{BenchRefused, Row, bench_store};
pub use run::{Report, replay, run};
pub use setup::{Act, Bug, Keeper, Setup};
pub use shrink::{Failure, attempt, shrink};
pub use small::{
    Broken, Explored, Small, SmallBug, TRANSITIONS, explore, larger_worlds, largest_world,
    small_worlds,
};
pub use tally::{Fault, MEETINGS_MIN, Met, Tally};
