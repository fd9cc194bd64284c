//! Tests of the data plane through its public interface.

mod arena;
mod batch;
mod faults;
mod plan;
mod refusals;
mod twin;
