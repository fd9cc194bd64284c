//! Data plane: copy plans, the backend interface, host memory and the host backend.
//!
//! Chooses no policy and owns no pins. A plan speaks ids, positions and byte ranges; only a backend
//! knows addresses.

mod arena;

pub use arena::{ArenaError, HostArena};
