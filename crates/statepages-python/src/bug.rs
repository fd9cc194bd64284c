//! Bugs: a panic of the core becomes an exception that `except Exception` sees.
//!
//! What a core found broken stays broken: its mutex is poisoned, and every later call raises.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::PyAssertionError;
use pyo3::prelude::*;

/// Runs core code; a panic is raised as `AssertionError` with its message.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let message = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied());
        bug(message.unwrap_or("a bug without a message"))
    })
}

/// A caller's or our own bug.
pub(crate) fn bug(message: impl Into<String>) -> PyErr {
    PyAssertionError::new_err(message.into())
}

/// Locks a core for a call that runs no Python code.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> PyResult<MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| bug("an earlier call found a broken invariant; discard the object"))
}
