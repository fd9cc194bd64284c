//! Arithmetic whose bits depend on neither the machine, the tile shapes nor the row count.

#![expect(clippy::inline_always, reason = "a kernel's parts must be compiled for its machine")]
#![expect(clippy::needless_range_loop, reason = "a tile is indexed along several arrays at once")]

pub(crate) mod attend;
pub(crate) mod expert;
pub(crate) mod gemm;
pub(crate) mod hyper;
pub(crate) mod lanes;
pub(crate) mod math;
pub(crate) mod matrix;
pub(crate) mod norm;
pub(crate) mod pool;
