//! The exceptions of the package.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use statepages_copy::CopyError;
use statepages_cuda::DeviceError;

create_exception!(statepages, ConsumedError, PyRuntimeError, "An object was used after its end.");
create_exception!(
    statepages,
    LostCheckpoint,
    PyException,
    "The checkpoint that an admission was promised is gone; nothing was taken for the request."
);
create_exception!(
    statepages,
    WireError,
    PyValueError,
    "A runtime that is inconsistent, or that did not come over the wire whole."
);
create_exception!(
    statepages,
    CopyRefused,
    PyValueError,
    "An operation that must not run; nothing of its batch was written."
);
create_exception!(
    statepages,
    DeviceFailure,
    PyRuntimeError,
    "The device failed, or has failed before and was not reset."
);
create_exception!(
    statepages,
    MemoryRefused,
    PyValueError,
    "An array that cannot be pages or slots: its name, what was expected, what came."
);

pub(crate) fn copy_error(error: CopyError) -> PyErr {
    match error {
        CopyError::Refused(refused) => CopyRefused::new_err(refused.to_string()),
        other => DeviceFailure::new_err(other.to_string()),
    }
}

pub(crate) fn device_error(error: DeviceError) -> PyErr {
    DeviceFailure::new_err(error.to_string())
}

pub(crate) fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("ConsumedError", py.get_type::<ConsumedError>())?;
    module.add("LostCheckpoint", py.get_type::<LostCheckpoint>())?;
    module.add("WireError", py.get_type::<WireError>())?;
    module.add("CopyRefused", py.get_type::<CopyRefused>())?;
    module.add("DeviceFailure", py.get_type::<DeviceFailure>())?;
    module.add("MemoryRefused", py.get_type::<MemoryRefused>())
}
