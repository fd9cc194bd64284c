//! What an admission answers, and every other call that may have to be tried again.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use statepages_page::Boundary;
use statepages_store::{AdmitReport, LossReason, Scope};

use super::ticket::PyResidency;

/// A request that was admitted.
#[pyclass(name = "Admitted", module = "statepages", frozen)]
pub(crate) struct PyAdmitted {
    /// Its slot and pages.
    #[pyo3(get)]
    pub(crate) residency: Py<PyResidency>,
    pub(crate) report: AdmitReport,
}

/// The answer of a call that must be tried again later: false, with a reason.
#[pyclass(name = "Refused", module = "statepages", frozen, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PyRefused {
    /// Why.
    #[pyo3(get)]
    pub(crate) reason: &'static str,
}

/// Which reasons to keep a boundary count for one request, as the policy planned at its admission.
#[pyclass(name = "Scope", module = "statepages", frozen, eq)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PyScope {
    pub(crate) scope: Scope,
}

#[pymethods]
impl PyScope {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the interpreter's interface")]
    fn __repr__(&self) -> String {
        format!("Scope({:?})", self.scope)
    }
}

#[pymethods]
impl PyRefused {
    #[expect(clippy::unused_self, reason = "the interpreter's interface")]
    const fn __bool__(&self) -> bool {
        false
    }

    fn __repr__(&self) -> String {
        format!("Refused({:?})", self.reason)
    }
}

#[pymethods]
impl PyAdmitted {
    /// Tokens asked for.
    #[getter]
    fn full(&self) -> u32 {
        self.report.hit.full.get()
    }

    /// Tokens of found blocks.
    #[getter]
    fn kv(&self) -> u32 {
        self.report.hit.kv.get()
    }

    /// Tokens that are resumed: compute what comes after them.
    #[getter]
    fn resumed(&self) -> u32 {
        self.report.hit.resumable.get()
    }

    /// A boundary at which a checkpoint is wanted, for `chunk_end` and `keep`.
    #[getter]
    fn demand(&self) -> Option<u32> {
        self.report.demand.map(Boundary::get)
    }

    /// Which reasons to keep a boundary count for the request, for `chunk_end` and `keep`.
    #[getter]
    const fn scope(&self) -> PyScope {
        PyScope { scope: self.report.scope }
    }

    /// Tokens that are computed again, by reason.
    #[getter]
    fn losses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let losses = PyDict::new(py);
        for reason in LossReason::ALL {
            losses.set_item(reason.name(), self.report.losses.get(reason).get())?;
        }
        Ok(losses)
    }

    fn __repr__(&self) -> String {
        format!("Admitted(full={}, kv={}, resumed={})", self.full(), self.kv(), self.resumed())
    }
}
