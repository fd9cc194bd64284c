//! Python bindings of statepages: the module `statepages._native`.
//!
//! Thin: decisions are `statepages-store`'s, copies those of `statepages-copy` and `statepages-cuda`.
//! What is added here is ownership for a language without moves (a consumed object raises when it is
//! used again, a dropped one is given back with a `ResourceWarning`) and memory that is somebody
//! else's (DLPack).

mod bug;
mod compat;
mod dlpack;
mod foreign;
mod native;

use pyo3::prelude::*;

/// The native half of the package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    native::register(module)?;
    compat::register(module)
}
