//! GPU data plane: the copy backend for CUDA, and for HIP from the same source.
//!
//! Driver and run-time compiler are loaded while the program runs; a machine without them answers
//! with [`DeviceError::LibraryAbsent`]. The way up: [`Device::open`], [`DeviceMemory`] (own
//! allocations, or an engine's tensors), [`DeviceBackend`], which is a
//! [`statepages_copy::CopyBackend`].
//!
//! Addressing is affine. What an image is made of is cut once, into resident tables or, where it is
//! simple enough, into an argument of the kernel; a batch brings only slot ids, unit ids, directions
//! and boundaries.
//!
//! This is the one crate with unsafe code. The kernels are in `kernels/copy.cu`.

mod api;
mod backend;
mod compile;
mod device;
mod direct;
mod encode;
mod error;
mod graph;
mod memory;
pub mod pattern;
mod shape;
mod staging;
mod tables;

pub use api::Vendor;
pub use backend::{DeviceBackend, DeviceOptions, Passing};
pub use compile::{CacheOutcome, Checks, KERNEL_SOURCE, Kernels, compile_for};
pub use device::{Allocation, Device, Event, Libraries, Processor, Stream};
pub use encode::GraphShape;
pub use error::DeviceError;
pub use graph::{CopyGraph, Replay};
pub use memory::{Buffer, DeviceMemory, ForeignBuffer, MemoryError};
pub use pattern::Probe;
pub use shape::KernelShape;
pub use staging::StagingLimits;
