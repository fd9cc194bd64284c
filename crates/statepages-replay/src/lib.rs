//! The laboratory: traffic replayed through the production engine, scheduler, store and placement,
//! with nothing computed, so that policies can be compared on real prompts in seconds.
//!
//! A [`Trace`] is read ([`gsm8k64`], [`mooncake`], [`lmcache`], [`jsonl`]) or made up ([`Distinct`],
//! [`Shared`]); [`replay`](fn@replay) sends it to a [`Server`] and answers [`RoundFigures`].

mod bound;
mod error;
mod extent;
mod figures;
mod gsm8k;
mod jsonl;
mod lmcache;
mod made;
mod mooncake;
mod plot;
mod policy;
mod random;
mod replay;
mod runner;
mod text;
mod trace;
mod watch;

pub use bound::{Bound, History};
pub use error::{ReplayError, TraceError};
pub use extent::Extent;
pub use figures::{KEEP_REASONS, RoundFigures, WINDOW, Window};
pub use gsm8k::{Draws, SHOTS, gsm8k64};
pub use jsonl::jsonl;
pub use lmcache::lmcache;
pub use made::{Distinct, Shared};
pub use mooncake::mooncake;
pub use plot::{Line, PlotError, plot};
pub use policy::Policy;
pub use replay::{Pace, Phase, Run, Server, replay};
pub use text::Texts;
pub use trace::{Ask, Order, Piece, Prompt, Reply, Trace};
pub use watch::{Stage, Watch};
