//! The native interface: one class per part of the core.

mod admitted;
mod backend;
pub(crate) mod error;
mod geometry;
mod keys;
mod layout;
mod ops;
mod plane;
mod runtime;
mod ticket;

use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::register(module)?;
    module.add_class::<layout::PyStateLayout>()?;
    module.add_class::<layout::PyRingRun>()?;
    module.add_class::<layout::PyCopyPlan>()?;
    module.add_class::<geometry::PyGeometry>()?;
    module.add_class::<runtime::PyCheckpointSpec>()?;
    module.add_class::<runtime::PyStateTransfer>()?;
    module.add_class::<runtime::PyStateRuntime>()?;
    module.add_class::<keys::PyDomain>()?;
    module.add_class::<keys::PyPromptKeys>()?;
    module.add_class::<ops::PyMaintenanceOps>()?;
    module.add_class::<backend::PyHostBackend>()?;
    module.add_class::<backend::PyCudaBackend>()?;
    module.add_class::<ticket::PyResidency>()?;
    module.add_class::<ticket::PyScratch>()?;
    module.add_class::<ticket::PyTicket>()?;
    module.add_class::<ticket::PyBatch>()?;
    module.add_class::<admitted::PyAdmitted>()?;
    module.add_class::<admitted::PyRefused>()?;
    module.add_class::<admitted::PyScope>()?;
    module.add_class::<plane::PyControlPlane>()?;
    Ok(())
}
