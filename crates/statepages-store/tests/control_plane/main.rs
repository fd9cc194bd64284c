//! Tests of the control plane through its public interface.

mod blockers;
mod corners;
mod support;
mod world;
