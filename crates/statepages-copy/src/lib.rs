//! Data plane: copy plans, the backend interface, host memory and the host backend.
//!
//! Chooses no policy and owns no pins. A plan speaks ids, positions and byte ranges; only a backend
//! knows addresses.
//!
//! The way of a batch: [`OpChecker`] refuses what must not run, [`Batcher`] places the rest in
//! launches, and a [`CopyBackend`] moves images by the [`CopyPlan`] cut once for its layout.

mod arena;
mod backend;
mod batch;
mod check;
mod faulty;
mod host;
mod pieces;
mod plan;

pub use arena::{ArenaError, HostArena};
pub use backend::{CopyBackend, CopyError, CopyOrder, CopyState, CopyTicket};
pub use batch::{Batcher, Launches, Step};
pub use check::{OpChecker, Refused};
pub use faulty::{Fault, FaultyBackend};
pub use host::{HostBackend, HostMemory, PagePlace, SlotPlace, Tickets};
pub use pieces::{Piece, Pieces};
pub use plan::{CopyPlan, Cut, CutError, Span, Stream, TILE_BYTES, Tile, cut};
