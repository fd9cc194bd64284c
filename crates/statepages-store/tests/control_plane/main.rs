//! Tests of the control plane through its public interface.

mod admission;
mod blockers;
mod corners;
mod groups;
mod placement;
mod scenarios;
mod support;
mod wire;
mod world;
