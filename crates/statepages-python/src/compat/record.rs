//! A checkpoint's record as the interface shows it: live, or by itself.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use statepages_page::CheckpointId;
use statepages_store::RecordState;

use super::store::StoreCore;
use crate::bug::lock;

/// One record. A live one shows what the store has; after its end it is EVICTING, without pins.
#[pyclass(module = "statepages.compat.page_unit_checkpoint")]
pub(crate) struct CheckpointRecord {
    #[pyo3(get)]
    prefix_hash: Py<PyAny>,
    #[pyo3(get)]
    unit_ids: Py<PyAny>,
    status: Status,
}

enum Status {
    Live { core: Arc<Mutex<StoreCore>>, id: CheckpointId },
    Alone { state: String, pins: i64 },
}

impl CheckpointRecord {
    pub(crate) fn live(
        core: Arc<Mutex<StoreCore>>,
        id: CheckpointId,
        prefix_hash: Py<PyAny>,
        unit_ids: Py<PyAny>,
    ) -> Self {
        Self { prefix_hash, unit_ids, status: Status::Live { core, id } }
    }

    fn state_and_pins(&self) -> PyResult<(String, i64)> {
        match &self.status {
            Status::Alone { state, pins } => Ok((state.clone(), *pins)),
            Status::Live { core, id } => {
                let core = lock(core)?;
                let view = core.store.find(*id).and_then(|index| core.store.view(index));
                let (state, pins) = match view.map(|view| view.state) {
                    Some(RecordState::Copying) => ("COPYING", 0),
                    Some(RecordState::Ready { pins }) => ("READY", pins),
                    Some(RecordState::EvictingReaders { pins }) => ("EVICTING", pins),
                    Some(RecordState::EvictingWriter) | None => ("EVICTING", 0),
                };
                Ok((state.to_owned(), i64::from(pins)))
            }
        }
    }
}

#[pymethods]
impl CheckpointRecord {
    #[new]
    #[pyo3(signature = (prefix_hash, unit_ids, state="COPYING".to_owned(), pin_count=0))]
    fn new(prefix_hash: Py<PyAny>, unit_ids: Py<PyAny>, state: String, pin_count: i64) -> Self {
        Self { prefix_hash, unit_ids, status: Status::Alone { state, pins: pin_count } }
    }

    #[getter]
    fn state(&self) -> PyResult<String> {
        Ok(self.state_and_pins()?.0)
    }

    #[getter]
    fn pin_count(&self) -> PyResult<i64> {
        Ok(self.state_and_pins()?.1)
    }

    fn __richcmp__(
        &self,
        other: &Bound<'_, PyAny>,
        op: CompareOp,
        py: Python<'_>,
    ) -> PyResult<Py<PyAny>> {
        let Ok(other) = other.cast::<Self>() else { return Ok(py.NotImplemented()) };
        let other = other.try_borrow()?;
        let equal = self.prefix_hash.bind(py).eq(&other.prefix_hash)?
            && self.unit_ids.bind(py).eq(&other.unit_ids)?
            && self.state_and_pins()? == other.state_and_pins()?;
        Ok(match op {
            CompareOp::Eq => equal.into_pyobject(py)?.to_owned().into_any().unbind(),
            CompareOp::Ne => (!equal).into_pyobject(py)?.to_owned().into_any().unbind(),
            _ => py.NotImplemented(),
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (hash, units) = (self.prefix_hash.bind(py), self.unit_ids.bind(py));
        let (state, pins) = self.state_and_pins()?;
        Ok(format!(
            "CheckpointRecord(prefix_hash={hash}, unit_ids={units}, state='{state}', pin_count={pins})"
        ))
    }
}
