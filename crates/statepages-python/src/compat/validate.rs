//! Validation of the interface's dataclasses, by the core's own rules.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};
use statepages_page::{Bytes, LayoutId};
use statepages_store::{CheckpointSpec, StateRuntime, StateTransfer};

use super::values::wrong_type;

/// Fields of a spec: page unit, slot and image bytes, layout id.
type SpecFields<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Checks the fields of `PagedStateCheckpointSpec` and answers its units per checkpoint.
#[pyfunction]
#[pyo3(name = "_check_spec")]
pub(crate) fn check_spec(fields: SpecFields<'_>) -> PyResult<u32> {
    Ok(spec(&fields)?.units_per_checkpoint().get())
}

/// Checks the fields of `StateTransfer`.
#[pyfunction]
#[pyo3(name = "_check_transfer")]
pub(crate) fn check_transfer(
    kind: &Bound<'_, PyAny>,
    fork_tokens: &Bound<'_, PyAny>,
    layout_id: &Bound<'_, PyAny>,
) -> PyResult<()> {
    transfer(kind, fork_tokens, layout_id).map(drop)
}

/// Checks a transfer and an optional spec together.
#[pyfunction]
#[pyo3(name = "_check_runtime")]
pub(crate) fn check_runtime(
    kind: &Bound<'_, PyAny>,
    fork_tokens: &Bound<'_, PyAny>,
    layout_id: &Bound<'_, PyAny>,
    spec_fields: Option<SpecFields<'_>>,
) -> PyResult<()> {
    let transfer = transfer(kind, fork_tokens, layout_id)?;
    let spec = spec_fields.as_ref().map(spec).transpose()?;
    StateRuntime::new(transfer, spec)
        .map(drop)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

fn spec((page, slot, image, layout): &SpecFields<'_>) -> PyResult<CheckpointSpec> {
    let bytes = |name: &str, value: &Bound<'_, PyAny>| {
        let whole = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
        let value = whole.then(|| value.extract::<u64>().ok()).flatten().filter(|&v| v > 0);
        value
            .map(Bytes::new)
            .ok_or_else(|| PyValueError::new_err(format!("{name} must be a positive integer")))
    };
    let (page, slot, image) =
        (bytes("page_unit_bytes", page)?, bytes("slot_bytes", slot)?, bytes("image_bytes", image)?);
    if image > slot {
        let message = format!("image_bytes {image} exceeds the {slot} a slot holds");
        return Err(PyValueError::new_err(message));
    }
    let layout = layout.cast::<PyString>().ok().and_then(|id| LayoutId::new(&id.to_cow().ok()?));
    let layout = layout.ok_or_else(|| {
        PyValueError::new_err("paged state checkpoints need a non-empty layout id")
    })?;
    CheckpointSpec::new(page, slot, image, layout)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

fn transfer(
    kind: &Bound<'_, PyAny>,
    fork_tokens: &Bound<'_, PyAny>,
    layout_id: &Bound<'_, PyAny>,
) -> PyResult<StateTransfer> {
    let kind = kind.cast::<PyString>().map_err(|_| wrong_type("kind", "a str", kind))?;
    if !fork_tokens.is_instance_of::<PyInt>() || fork_tokens.is_instance_of::<PyBool>() {
        return Err(wrong_type("fork_tokens", "an int", fork_tokens));
    }
    let layout = match layout_id.cast::<PyString>() {
        Ok(id) => Some(id.to_cow()?),
        Err(_) if layout_id.is_none() => None,
        Err(_) => return Err(wrong_type("paged_layout_id", "a str or None", layout_id)),
    };
    let tokens = fork_tokens.extract::<i64>().ok();
    let value = |message: &str| Err(PyValueError::new_err(message.to_owned()));
    match (&*kind.to_cow()?, tokens, layout) {
        ("copy", Some(0), Some(id)) => match LayoutId::new(&id) {
            Some(layout) => Ok(StateTransfer::Copy { layout }),
            None => value("paged_layout_id: expected a non-empty layout id, got ''"),
        },
        ("copy", Some(0), None) => value("paged_layout_id: copy needs a layout id, got None"),
        ("copy", _, _) => value("fork_tokens: expected 0 for copy"),
        ("fork", _, Some(_)) => value("paged_layout_id: fork takes no layout id"),
        ("fork", tokens, None) => match tokens.and_then(|tokens| u32::try_from(tokens).ok()) {
            Some(tokens @ 1..) => Ok(StateTransfer::Fork { tokens }),
            _ => value("fork_tokens: fork needs a positive number of tokens below 2**32"),
        },
        ("none", Some(0), None) => Ok(StateTransfer::None),
        ("none", _, _) => value("none takes neither fork_tokens nor a layout id"),
        (other, _, _) => value(&format!("kind: expected copy, fork or none, got {other:?}")),
    }
}
