//! Affine values for a language without moves: residencies, scratch slots and receipts.
//!
//! ```text
//!   try_admit, reserve_scratch, begin_batch --> held --the call that consumes it--> consumed
//!                                                 |
//!                                                 '--dropped--> lane --next call--> given back
//! ```
//!
//! Invariants:
//! - a value is consumed once; using it afterwards raises `ConsumedError`;
//! - one that is dropped is given back, with a `ResourceWarning`: a residency and a scratch slot are
//!   released, a receipt is settled as failed, because nobody can give its batch's word any more. It
//!   goes through the lane where the control plane is at work, so that dropping never waits;
//! - values keep their control plane alive.

use std::ffi::CStr;
use std::sync::{Arc, Mutex};

use numpy::PyArray1;
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use statepages_store::{ControlPlane, Outcome, Receipt, Residency, Scratch};

use super::error::{ConsumedError, value_error};
use super::ops::PyMaintenanceOps;
use crate::bug::{bug, guarded};

/// A control plane and what has been dropped without being given back.
pub(crate) struct Shared {
    plane: Mutex<ControlPlane>,
    lane: Mutex<Vec<Dropped>>,
}

pub(crate) enum Dropped {
    Residency(Residency),
    Scratch(Scratch),
    Receipt(Receipt),
}

impl Shared {
    pub(crate) fn new(plane: ControlPlane) -> Arc<Self> {
        Arc::new(Self { plane: Mutex::new(plane), lane: Mutex::new(Vec::new()) })
    }

    /// Calls the control plane; a panic of it is raised, and every later call, too.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut ControlPlane) -> T) -> PyResult<T> {
        guarded(|| {
            let mut plane = self.plane.lock().map_err(|_| ())?;
            self.empty_lane(&mut plane);
            Ok(call(&mut plane))
        })?
        .map_err(|()| bug("an earlier call found a broken invariant; discard the control plane"))
    }

    fn empty_lane(&self, plane: &mut ControlPlane) {
        let dropped = match self.lane.lock() {
            Ok(mut lane) => std::mem::take(&mut *lane),
            Err(_) => return,
        };
        for value in dropped {
            match value {
                Dropped::Residency(residency) => {
                    plane.release(residency);
                }
                Dropped::Scratch(scratch) => {
                    plane.release_scratch(scratch);
                }
                Dropped::Receipt(receipt) => plane.settle(receipt, Outcome::Failed),
            }
        }
    }

    fn give_back(&self, value: Dropped) {
        if let Ok(mut lane) = self.lane.lock() {
            lane.push(value);
        } else {
            std::mem::forget(value);
        }
        // At once where the control plane is not at work; its next call does it otherwise. A bug here
        // has no caller to tell: it poisons the control plane, whose next call raises.
        let emptied = guarded(|| {
            if let Ok(mut plane) = self.plane.try_lock() {
                self.empty_lane(&mut plane);
            }
        });
        drop(emptied);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let emptied = guarded(|| {
            if let Ok(mut plane) = self.plane.lock() {
                self.empty_lane(&mut plane);
            }
        });
        drop(emptied);
        // Nothing can be given back to a broken control plane, and tickets panic in their own `drop`.
        if let Ok(lane) = self.lane.get_mut() {
            lane.drain(..).for_each(std::mem::forget);
        }
    }
}

/// Warns that something was dropped, whatever else is being raised.
fn warn(message: &CStr) {
    // At the interpreter's end nobody is left to warn.
    let _: Option<()> = Python::try_attach(|py| {
        let raised = PyErr::take(py);
        if let Err(error) = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), message, 1) {
            error.write_unraisable(py, None);
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    });
}

macro_rules! ticket {
    ($(#[$doc:meta])* $name:ident, $python:literal, $inner:ident, $dropped:literal) => {
        $(#[$doc])*
        #[pyclass(name = $python, module = "statepages")]
        pub(crate) struct $name {
            inner: Option<$inner>,
            shared: Arc<Shared>,
        }

        impl $name {
            pub(crate) fn new(inner: $inner, shared: &Arc<Shared>) -> Self {
                Self { inner: Some(inner), shared: Arc::clone(shared) }
            }

            /// The value, if it is `shared`'s and not consumed.
            pub(crate) fn of(&mut self, shared: &Arc<Shared>) -> PyResult<&mut $inner> {
                if !Arc::ptr_eq(&self.shared, shared) {
                    return Err(value_error(concat!($python, " of another control plane")));
                }
                self.inner.as_mut().ok_or_else(Self::consumed)
            }

            /// Consumes the value.
            pub(crate) fn take(&mut self, shared: &Arc<Shared>) -> PyResult<$inner> {
                self.of(shared)?;
                self.inner.take().ok_or_else(Self::consumed)
            }

            fn held(&self) -> PyResult<&$inner> {
                self.inner.as_ref().ok_or_else(Self::consumed)
            }

            fn consumed() -> PyErr {
                ConsumedError::new_err(concat!($python, ": used after its end"))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if let Some(inner) = self.inner.take() {
                    self.shared.give_back(Dropped::$inner(inner));
                    warn($dropped);
                }
            }
        }
    };
}

ticket!(
    /// A resident request: its slot and its pages. Ends by `ControlPlane.release`.
    PyResidency,
    "Residency",
    Residency,
    c"Residency dropped: its slot and pages were released; call ControlPlane.release"
);
ticket!(
    /// A slot that a forward writes an interior state into. Ends by `file_scratch` or
    /// `release_scratch`.
    PyScratch,
    "Scratch",
    Scratch,
    c"Scratch dropped: its slot was released; call file_scratch or release_scratch"
);
ticket!(
    /// Owner of a batch's stores and pins. Ends by `ControlPlane.settle`.
    PyTicket,
    "Receipt",
    Receipt,
    c"Receipt dropped: its batch was settled as failed; call ControlPlane.settle"
);

#[pymethods]
impl PyResidency {
    #[getter]
    fn request(&self) -> PyResult<u64> {
        Ok(self.held()?.request().raw())
    }

    #[getter]
    fn slot(&self) -> PyResult<u32> {
        Ok(self.held()?.slot().raw())
    }

    /// Pages, one per block, in the order of the blocks; a copy.
    #[getter]
    fn pages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let pages = self.held()?.pages().iter().map(|page| page.raw()).collect();
        Ok(PyArray1::from_vec(py, pages))
    }

    /// Whether it has been released.
    #[getter]
    const fn released(&self) -> bool {
        self.inner.is_none()
    }
}

#[pymethods]
impl PyScratch {
    #[getter]
    fn slot(&self) -> PyResult<u32> {
        Ok(self.held()?.slot().raw())
    }

    #[getter]
    fn boundary(&self) -> PyResult<u32> {
        Ok(self.held()?.boundary().get())
    }
}

#[pymethods]
impl PyTicket {
    /// The batch's id.
    #[getter]
    fn batch(&self) -> PyResult<u64> {
        Ok(self.held()?.batch().raw())
    }
}

/// A batch that really runs: what its copies have to do, and the receipt that owns its pins.
#[pyclass(name = "Batch", module = "statepages", frozen)]
pub(crate) struct PyBatch {
    #[pyo3(get)]
    pub(crate) receipt: Py<PyTicket>,
    #[pyo3(get)]
    pub(crate) ops: Py<PyMaintenanceOps>,
    #[pyo3(get)]
    pub(crate) id: u64,
}
