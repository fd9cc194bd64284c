//! DeepSeek-V4 (DSV4) forward on the CPU, with all request state in pages and slots.
//!
//! One numeric definition serves prefill, decode, mixed batches and re-prefill after preemption, so
//! a token's logits are the same bits however the request was cut, batched, resumed or scheduled:
//!
//! - A row is rounded to its cache format before any query reads it.
//! - Every sum has one order: projections in the order of `kernel/gemm.rs`, attention over
//!   compressed entries and then window rows, ascending, experts by ascending id with the shared
//!   expert last.
//! - Ties in a choice go to the lower index.
//! - Every elementary function is a fixed sequence of exact operations.
//!
//! The crate knows nothing of requests, pins, HTTP or tokenization. It never changes what it was
//! not asked to: a forward writes the slots of its sequences and the pages in which their chunks
//! complete entries.

mod aligned;
mod batch;
mod choice;
mod config;
mod crew;
mod flops;
mod forward;
mod kernel;
pub mod minifloat;
mod moe;
mod pass;
mod rope;
mod row;
mod sampler;
mod seeded;
mod state;
mod tile;
mod weights;

pub use batch::{ForwardError, Logits, LogitsWanted, SequenceChunk};
pub use choice::{ChoiceAt, Choices};
pub use config::{ConfigError, ModelConfig, Yarn};
pub use flops::forward_flops;
pub use forward::{Model, ModelError, Phase, RunOptions};
pub use kernel::lanes::{Isa, IsaUnavailable};
pub use kernel::matrix::MatrixData;
pub use sampler::{DrawAt, SampleError, Sampling, SamplingError, SamplingOptions};
pub use seeded::SeededTensors;
pub use weights::{TensorSource, WeightError, Weights};
