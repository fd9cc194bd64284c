//! Values that compare, hash, print and pickle as frozen dataclasses do, without a dictionary each:
//! an engine makes one per store and restore.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};
use statepages_page::PageId;

/// A field of a value.
pub(crate) enum Field {
    Python(Py<PyAny>),
    /// Units of an image. Their tuple is made when somebody asks for it, so that the ints of records
    /// that nobody looks at are never made, and none outlives its operation.
    Units {
        units: Box<[PageId]>,
        tuple: PyOnceLock<Py<PyTuple>>,
    },
}

impl Field {
    pub(crate) fn units(units: &[PageId]) -> Self {
        Self::Units { units: units.into(), tuple: PyOnceLock::new() }
    }

    fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Python(value) => Ok(value.bind(py).clone()),
            Self::Units { units, tuple } => {
                let made = tuple.get_or_try_init(py, || {
                    PyTuple::new(py, units.iter().map(|page| page.raw())).map(Bound::unbind)
                })?;
                Ok(made.bind(py).clone().into_any())
            }
        }
    }
}

macro_rules! frozen_value {
    ($(#[$doc:meta])* $name:ident, $module:literal { $($field:ident),+ }) => {
        $(#[$doc])*
        #[pyclass(frozen, module = $module)]
        pub(crate) struct $name {
            $(pub(crate) $field: Field,)+
        }

        #[pymethods]
        impl $name {
            #[new]
            fn new($($field: Py<PyAny>),+) -> Self {
                Self { $($field: Field::Python($field)),+ }
            }

            $(
                #[getter]
                fn $field<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                    self.$field.get(py)
                }
            )+

            fn __richcmp__(
                &self,
                other: &Bound<'_, PyAny>,
                op: CompareOp,
                py: Python<'_>,
            ) -> PyResult<Py<PyAny>> {
                let Ok(other) = other.cast::<Self>() else { return Ok(py.NotImplemented()) };
                let other = other.get();
                let equal = || Ok::<_, PyErr>(true $(&& self.$field.get(py)?.eq(other.$field.get(py)?)?)+);
                Ok(match op {
                    CompareOp::Eq => equal()?.into_pyobject(py)?.to_owned().into_any().unbind(),
                    CompareOp::Ne => (!equal()?).into_pyobject(py)?.to_owned().into_any().unbind(),
                    _ => py.NotImplemented(),
                })
            }

            fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
                self.fields(py)?.hash()
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                let mut parts = Vec::new();
                $(parts.push(format!(
                    concat!(stringify!($field), "={}"),
                    self.$field.get(py)?.repr()?.to_cow()?
                ));)+
                Ok(format!("{}({})", stringify!($name), parts.join(", ")))
            }

            fn __reduce__<'py>(
                &self,
                py: Python<'py>,
            ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
                Ok((py.get_type::<Self>(), self.fields(py)?))
            }

            fn __setattr__(&self, name: &str, _value: Py<PyAny>, py: Python<'_>) -> PyResult<()> {
                Err(frozen(py, "assign to", name))
            }

            fn __delattr__(&self, name: &str, py: Python<'_>) -> PyResult<()> {
                Err(frozen(py, "delete", name))
            }
        }

        impl $name {
            fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
                PyTuple::new(py, [$(self.$field.get(py)?),+])
            }
        }
    };
}

frozen_value!(
    /// Scatters the checkpointed part of a slot into pages.
    CheckpointStoreOp, "statepages.compat.page_unit_checkpoint" {
        src_slot, unit_ids, total_bytes, layout_id
    }
);
frozen_value!(
    /// Gathers an image back into a slot.
    CheckpointRestoreOp, "statepages.compat.page_unit_checkpoint" {
        dst_slot, unit_ids, total_bytes, layout_id
    }
);
frozen_value!(
    /// What became of the highest block; `moved_to` is -1 where it was free.
    BlockRetirement, "statepages.compat.block_pool" { retired, moved_to }
);

/// The exception that a frozen dataclass raises.
fn frozen(py: Python<'_>, what: &str, name: &str) -> PyErr {
    let kind = py
        .import(intern!(py, "dataclasses"))
        .and_then(|module| module.getattr(intern!(py, "FrozenInstanceError")))
        .and_then(|kind| kind.cast_into::<PyType>().map_err(PyErr::from));
    match kind {
        Ok(kind) => PyErr::from_type(kind, format!("cannot {what} field '{name}'")),
        Err(error) => error,
    }
}

/// The message of a value whose type is none of those expected.
pub(crate) fn wrong_type(field: &str, expected: &str, got: &Bound<'_, PyAny>) -> PyErr {
    let name = got.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{field}: expected {expected}, got {name}"))
}
