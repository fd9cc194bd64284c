//! Tests of the control plane through its public interface.

mod blockers;
mod support;
mod world;
