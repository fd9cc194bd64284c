//! Requests, scheduler and the loop: what turns submitted prompts into batches, and results into
//! tokens.
//!
//! One owner drives an [`Engine`]: it hands over [`Event`]s, calls [`Engine::step`], and drains
//! [`Output`]s. The engine is generic over what computes ([`Runner`]) and over what loads from
//! elsewhere ([`Connector`]). It has no clock, no randomness of its own, no thread and no I/O.

mod build;
mod connector;
mod cpu;
mod delayed;
mod engine;
mod event;
mod facts;
mod limits;
mod loads;
mod metrics;
mod null;
mod output;
mod recurrent;
mod recurrent_runner;
mod request;
mod runner;
mod schedule;
mod sequence;
mod settle;

pub use connector::{Connector, Load, LoadDone, LoadId, LoadOutcome, LoadQuery, NoConnector};
pub use cpu::CpuRunner;
pub use delayed::{DelayedConnector, Faults, RemoteSource};
pub use engine::{Engine, EngineParts, Progress};
pub use event::Event;
pub use facts::StartupFacts;
pub use limits::{InFlight, LimitError, Limits, PoolFacts, RawLimits};
pub use metrics::{Snapshot, Totals, Usage};
pub use null::NullRunner;
pub use output::{Failure, FinishReason, LoadEnd, Output, PreemptCause};
pub use recurrent::{RecurrentModel, RecurrentRemote};
pub use recurrent_runner::{Effect, Latency, RecurrentRunner, RunnerFaults};
pub use request::{LogitsReport, Refusal, Request, Sampling, Stop, TokenPlace};
pub use runner::{
    LogitsWanted, RemoteState, Row, RowOutput, RunError, Runner, StepBatch, StepResult,
};
pub use schedule::Passes;
