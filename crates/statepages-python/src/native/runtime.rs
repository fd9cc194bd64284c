//! State transfer, geometry of images, and the versioned wire form in which a runner tells an engine.

use std::collections::BTreeMap;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyMapping, PyString, PyTuple, PyType};
use statepages_page::{Bytes, LayoutId, StateLayout};
use statepages_store::{CheckpointSpec, StateRuntime, StateTransfer, SuccessorRoom, WireValue};

use super::error::{WireError, value_error};

/// Geometry of page-backed images.
#[pyclass(name = "CheckpointSpec", module = "statepages", frozen, eq)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PyCheckpointSpec {
    pub(crate) spec: CheckpointSpec,
}

/// `StateTransfer.copy(layout_id)`, `.fork(tokens)` or `.none()`.
#[pyclass(name = "StateTransfer", module = "statepages", frozen, eq)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PyStateTransfer {
    pub(crate) transfer: StateTransfer,
}

/// A transfer with the geometry it needs, validated together.
#[pyclass(name = "StateRuntime", module = "statepages", frozen, eq)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PyStateRuntime {
    pub(crate) runtime: StateRuntime,
}

/// A spec as plain values.
type SpecState = (u64, u64, u64, String);

impl PyCheckpointSpec {
    pub(crate) fn of(layout: &StateLayout) -> PyResult<Self> {
        Ok(Self { spec: CheckpointSpec::of(layout).map_err(wire)? })
    }
}

#[pymethods]
impl PyCheckpointSpec {
    #[new]
    #[pyo3(signature = (*, page_unit_bytes, slot_bytes, image_bytes, layout_id))]
    fn new(
        page_unit_bytes: u64,
        slot_bytes: u64,
        image_bytes: u64,
        layout_id: &str,
    ) -> PyResult<Self> {
        let sizes = [page_unit_bytes, slot_bytes, image_bytes].map(Bytes::new);
        let [page, slot, image] = sizes;
        let spec = CheckpointSpec::new(page, slot, image, layout(layout_id)?).map_err(wire)?;
        Ok(Self { spec })
    }

    #[getter]
    fn page_unit_bytes(&self) -> u64 {
        self.spec.page_unit_bytes().get()
    }

    #[getter]
    fn slot_bytes(&self) -> u64 {
        self.spec.slot_bytes().get()
    }

    #[getter]
    fn image_bytes(&self) -> u64 {
        self.spec.image_bytes().get()
    }

    #[getter]
    fn layout_id(&self) -> &str {
        self.spec.layout().as_str()
    }

    #[getter]
    fn units_per_checkpoint(&self) -> u32 {
        self.spec.units_per_checkpoint().get()
    }

    /// What pickling calls: sizes and id in the order of the getters above.
    #[staticmethod]
    fn _of(page: u64, slot: u64, image: u64, layout_id: &str) -> PyResult<Self> {
        Self::new(page, slot, image, layout_id)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, SpecState)> {
        let state = (
            self.page_unit_bytes(),
            self.slot_bytes(),
            self.image_bytes(),
            self.layout_id().to_owned(),
        );
        Ok((py.get_type::<Self>().getattr("_of")?, state))
    }

    fn __repr__(&self) -> String {
        format!(
            "CheckpointSpec(page_unit_bytes={}, slot_bytes={}, image_bytes={}, layout_id={:?})",
            self.page_unit_bytes(),
            self.slot_bytes(),
            self.image_bytes(),
            self.layout_id()
        )
    }
}

#[pymethods]
impl PyStateTransfer {
    /// An image is copied into a slot of the resuming request's own.
    #[classmethod]
    fn copy(_cls: &Bound<'_, PyType>, layout_id: &str) -> PyResult<Self> {
        Ok(Self { transfer: StateTransfer::Copy { layout: layout(layout_id)? } })
    }

    /// The live group becomes the checkpoint; the next forward has at least `tokens`.
    #[classmethod]
    fn fork(_cls: &Bound<'_, PyType>, tokens: u32) -> PyResult<Self> {
        if tokens == 0 {
            return Err(value_error("tokens: expected at least 1, got 0"));
        }
        Ok(Self { transfer: StateTransfer::Fork { tokens } })
    }

    /// State starts at zero tokens.
    #[classmethod]
    fn none(_cls: &Bound<'_, PyType>) -> Self {
        Self { transfer: StateTransfer::None }
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.transfer {
            StateTransfer::Copy { .. } => "copy",
            StateTransfer::Fork { .. } => "fork",
            StateTransfer::None => "none",
        }
    }

    /// Tokens that the forward after a checkpoint must have; `None` where none suffice.
    #[getter]
    fn successor_room(&self) -> Option<u32> {
        match self.transfer.successor_room() {
            SuccessorRoom::Tokens(tokens) => Some(tokens),
            SuccessorRoom::Never => None,
        }
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let state = match &self.transfer {
            StateTransfer::Copy { layout } => PyTuple::new(py, [layout.as_str()])?,
            StateTransfer::Fork { tokens } => PyTuple::new(py, [*tokens])?,
            StateTransfer::None => PyTuple::empty(py),
        };
        Ok((py.get_type::<Self>().getattr(self.kind())?, state))
    }

    fn __repr__(&self) -> String {
        match &self.transfer {
            StateTransfer::Copy { layout } => format!("StateTransfer.copy({:?})", layout.as_str()),
            StateTransfer::Fork { tokens } => format!("StateTransfer.fork({tokens})"),
            StateTransfer::None => "StateTransfer.none()".to_owned(),
        }
    }
}

#[pymethods]
impl PyStateRuntime {
    #[new]
    #[pyo3(signature = (transfer, spec=None))]
    fn new(transfer: &PyStateTransfer, spec: Option<&PyCheckpointSpec>) -> PyResult<Self> {
        let spec = spec.map(|spec| spec.spec.clone());
        let runtime = StateRuntime::new(transfer.transfer.clone(), spec).map_err(wire)?;
        Ok(Self { runtime })
    }

    #[getter]
    fn transfer(&self) -> PyStateTransfer {
        PyStateTransfer { transfer: self.runtime.transfer().clone() }
    }

    #[getter]
    fn spec(&self) -> Option<PyCheckpointSpec> {
        self.runtime.spec().map(|spec| PyCheckpointSpec { spec: spec.clone() })
    }

    /// The nested, versioned wire form.
    pub(crate) fn to_wire<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.runtime.to_wire())
    }

    /// Reads exactly what `to_wire` writes and validates the whole again.
    #[classmethod]
    fn from_wire(_cls: &Bound<'_, PyType>, wire_form: &Bound<'_, PyAny>) -> PyResult<Self> {
        let runtime = StateRuntime::from_wire(&from_python(wire_form)?).map_err(wire)?;
        Ok(Self { runtime })
    }

    /// Refuses a peer whose runtime differs, naming both sides.
    fn agree(&self, theirs: &Self) -> PyResult<()> {
        self.runtime.agree(&theirs.runtime).map_err(wire)
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyAny>,))> {
        let read = py.get_type::<Self>().getattr("from_wire")?;
        Ok((read, (self.to_wire(py)?,)))
    }

    fn __repr__(&self) -> String {
        let spec = self.spec().map_or_else(|| "None".to_owned(), |spec| spec.__repr__());
        format!("StateRuntime({}, {spec})", self.transfer().__repr__())
    }
}

fn layout(id: &str) -> PyResult<LayoutId> {
    LayoutId::new(id).ok_or_else(|| value_error("layout_id: expected a text, got ''"))
}

fn wire(error: statepages_store::WireError) -> PyErr {
    WireError::new_err(error.to_string())
}

fn to_python<'py>(py: Python<'py>, value: &WireValue) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        WireValue::Null => py.None().into_bound(py),
        WireValue::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        WireValue::Int(value) => value.into_pyobject(py)?.into_any(),
        WireValue::Str(text) => PyString::new(py, text).into_any(),
        WireValue::Map(fields) => {
            let dict = PyDict::new(py);
            for (name, value) in fields {
                dict.set_item(name, to_python(py, value)?)?;
            }
            dict.into_any()
        }
    })
}

fn from_python(value: &Bound<'_, PyAny>) -> PyResult<WireValue> {
    if value.is_none() {
        return Ok(WireValue::Null);
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(WireValue::Bool(truth.is_true()));
    }
    if let Ok(number) = value.cast::<PyInt>() {
        return Ok(WireValue::Int(number.extract()?));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(WireValue::Str(text.to_cow()?.into_owned()));
    }
    let name = value.get_type().name()?.to_string();
    let fields = value
        .cast::<PyMapping>()
        .map_err(|_| PyTypeError::new_err(format!("wire form: expected a mapping, got {name}")))?;
    let mut map = BTreeMap::new();
    for item in fields.items()?.iter() {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        map.insert(name, from_python(&value)?);
    }
    Ok(WireValue::Map(map))
}
