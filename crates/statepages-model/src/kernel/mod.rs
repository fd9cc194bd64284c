//! Arithmetic whose bits depend on neither the machine, the tile shapes nor the row count.

pub(crate) mod attend;
pub(crate) mod expert;
pub(crate) mod gemm;
pub(crate) mod hyper;
pub(crate) mod lanes;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod pool;
