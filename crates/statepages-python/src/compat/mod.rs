//! What `statepages.compat` is made of: the interface of engines that have a block pool and page-unit
//! checkpoints, on the parts of `statepages-store`. Python adds dataclasses and live views.

mod coordinator;
mod key;
mod pool;
mod record;
mod segmented;
mod store;
mod validate;
mod values;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<pool::Block>()?;
    module.add_class::<pool::BlockPool>()?;
    module.add_class::<values::BlockRetirement>()?;
    module.add_class::<values::CheckpointStoreOp>()?;
    module.add_class::<values::CheckpointRestoreOp>()?;
    module.add_class::<record::CheckpointRecord>()?;
    module.add_class::<store::PageUnitCheckpointStore>()?;
    module.add_class::<coordinator::PagedStateCheckpointCoordinator>()?;
    module.add_function(wrap_pyfunction!(segmented::segmented_spans, module)?)?;
    module.add_function(wrap_pyfunction!(segmented::segmented_descriptor, module)?)?;
    module.add_function(wrap_pyfunction!(validate::check_spec, module)?)?;
    module.add_function(wrap_pyfunction!(validate::check_transfer, module)?)?;
    module.add_function(wrap_pyfunction!(validate::check_runtime, module)?)?;
    Ok(())
}

/// A subclass's `__init__` may take more than its base's, which then comes to `__new__`, too.
fn no_surplus(
    base: &Bound<'_, PyType>,
    cls: &Bound<'_, PyType>,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let named = kwargs.map_or(0, PyDictMethods::len);
    if cls.is(base) && args.len() + named > 0 {
        return Err(PyTypeError::new_err(format!(
            "{}: got {} unexpected arguments",
            cls.name()?,
            args.len() + named
        )));
    }
    Ok(())
}
