//! One batch's maintenance operations, as arrays of ids.

use std::sync::{Arc, Mutex};

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use statepages_page::{
    Boundary, CheckpointId, MaintenanceOps, PageId, Relocation, RestoreOp, SlotId, StateLayout,
    StoreOp, UnitRange,
};

use super::error::value_error;
use super::keys::integers;
use super::layout::PyStateLayout;

/// Relocations, stores and restores of one batch, in order. Immutable.
#[pyclass(name = "MaintenanceOps", module = "statepages", frozen)]
pub(crate) struct PyMaintenanceOps {
    pub(crate) ops: MaintenanceOps,
    /// Where the bundle goes when nobody looks at it any more.
    spares: Option<Arc<Spares>>,
}

/// Bundles of batches that are over: their memory serves the next ones.
#[derive(Default)]
pub(crate) struct Spares(Mutex<Vec<MaintenanceOps>>);

/// More than an engine has batches in flight.
const SPARES_MAX: usize = 8;

impl Spares {
    pub(crate) fn take(&self) -> MaintenanceOps {
        self.0.lock().ok().and_then(|mut spares| spares.pop()).unwrap_or_default()
    }
}

impl Drop for PyMaintenanceOps {
    fn drop(&mut self) {
        if let Some(spares) = &self.spares
            && let Ok(mut spares) = spares.0.lock()
            && spares.len() < SPARES_MAX
        {
            spares.push(std::mem::take(&mut self.ops));
        }
    }
}

type Ids<'py> = Bound<'py, PyArray1<u32>>;

/// Slots, boundaries and units of one kind of operation.
struct Columns {
    slots: Vec<u32>,
    boundaries: Vec<u32>,
    units: Vec<u32>,
}

#[pymethods]
impl PyMaintenanceOps {
    /// Operations of an engine with a control plane of its own: slots and boundaries of `n` images,
    /// and their units as `(n, units_per_checkpoint)`. Relocations are pairs `(from, to)`.
    #[staticmethod]
    #[pyo3(signature = (
        layout, *, store_slots=None, store_units=None, store_boundaries=None, restore_slots=None,
        restore_units=None, restore_boundaries=None, relocations=vec![]
    ))]
    #[expect(clippy::too_many_arguments, reason = "named in Python")]
    fn of(
        layout: &PyStateLayout,
        store_slots: Option<&Bound<'_, PyAny>>,
        store_units: Option<&Bound<'_, PyAny>>,
        store_boundaries: Option<&Bound<'_, PyAny>>,
        restore_slots: Option<&Bound<'_, PyAny>>,
        restore_units: Option<&Bound<'_, PyAny>>,
        restore_boundaries: Option<&Bound<'_, PyAny>>,
        relocations: Vec<(u32, u32)>,
    ) -> PyResult<Self> {
        let layout = &layout.layout;
        let per = layout.units_per_checkpoint().index();
        let stores = columns("store", per, store_slots, store_boundaries, store_units)?;
        let restores = columns("restore", per, restore_slots, restore_boundaries, restore_units)?;
        let mut ops = MaintenanceOps::default();
        for (from, to) in relocations {
            ops.relocations.push(Relocation { from: SlotId::new(from), to: SlotId::new(to) });
        }
        each(&mut ops, &stores, layout, |ops, n, slot, boundary, units| {
            ops.stores.push(StoreOp {
                checkpoint: CheckpointId::new(n),
                slot,
                boundary,
                units,
                image: layout.image.image_bytes(),
                layout: layout.id.tag(),
            });
        });
        each(&mut ops, &restores, layout, |ops, n, slot, boundary, units| {
            ops.restores.push(RestoreOp {
                checkpoint: CheckpointId::new(n),
                slot,
                boundary,
                units,
                image: layout.image.image_bytes(),
                layout: layout.id.tag(),
            });
        });
        Ok(Self { ops, spares: None })
    }

    #[getter]
    fn empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// `(n, 2)`: from, to.
    #[getter]
    fn relocations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        let flat: Vec<u32> =
            self.ops.relocations.iter().flat_map(|r| [r.from.raw(), r.to.raw()]).collect();
        PyArray1::from_vec(py, flat).reshape([self.ops.relocations.len(), 2])
    }

    #[getter]
    fn store_slots<'py>(&self, py: Python<'py>) -> Ids<'py> {
        PyArray1::from_vec(py, self.ops.stores.iter().map(|op| op.slot.raw()).collect())
    }

    #[getter]
    fn store_boundaries<'py>(&self, py: Python<'py>) -> Ids<'py> {
        PyArray1::from_vec(py, self.ops.stores.iter().map(|op| op.boundary.get()).collect())
    }

    #[getter]
    fn store_checkpoints<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_vec(py, self.ops.stores.iter().map(|op| op.checkpoint.raw()).collect())
    }

    /// `(n, units_per_checkpoint)`, in canonical order.
    #[getter]
    fn store_units<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        self.units(py, &self.ops.stores.iter().map(|op| op.units).collect::<Vec<_>>())
    }

    #[getter]
    fn restore_slots<'py>(&self, py: Python<'py>) -> Ids<'py> {
        PyArray1::from_vec(py, self.ops.restores.iter().map(|op| op.slot.raw()).collect())
    }

    #[getter]
    fn restore_boundaries<'py>(&self, py: Python<'py>) -> Ids<'py> {
        PyArray1::from_vec(py, self.ops.restores.iter().map(|op| op.boundary.get()).collect())
    }

    #[getter]
    fn restore_checkpoints<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_vec(py, self.ops.restores.iter().map(|op| op.checkpoint.raw()).collect())
    }

    /// `(n, units_per_checkpoint)`, in canonical order.
    #[getter]
    fn restore_units<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        self.units(py, &self.ops.restores.iter().map(|op| op.units).collect::<Vec<_>>())
    }

    fn __repr__(&self) -> String {
        let MaintenanceOps { relocations, stores, restores, .. } = &self.ops;
        format!(
            "MaintenanceOps({} relocations, {} stores, {} restores)",
            relocations.len(),
            stores.len(),
            restores.len()
        )
    }
}

impl PyMaintenanceOps {
    pub(crate) fn recycled(ops: MaintenanceOps, spares: &Arc<Spares>) -> Self {
        Self { ops, spares: Some(Arc::clone(spares)) }
    }

    fn units<'py>(
        &self,
        py: Python<'py>,
        ranges: &[UnitRange],
    ) -> PyResult<Bound<'py, PyArray2<u32>>> {
        let flat: Vec<u32> =
            ranges.iter().flat_map(|&range| self.ops.units(range)).map(|page| page.raw()).collect();
        let per = if ranges.is_empty() { 0 } else { flat.len() / ranges.len() };
        PyArray1::from_vec(py, flat).reshape([ranges.len(), per])
    }
}

fn columns(
    what: &str,
    per: usize,
    slots: Option<&Bound<'_, PyAny>>,
    boundaries: Option<&Bound<'_, PyAny>>,
    units: Option<&Bound<'_, PyAny>>,
) -> PyResult<Columns> {
    let list = |given: Option<&Bound<'_, PyAny>>, name: &str| {
        given.map_or_else(|| Ok(Vec::new()), |ids| integers(ids, &format!("{what}_{name}")))
    };
    let slots = list(slots, "slots")?;
    let mut positions = list(boundaries, "boundaries")?;
    if boundaries.is_none() {
        positions.resize(slots.len(), 0);
    }
    let units = match units {
        None => Vec::new(),
        Some(units) => rows(units, &format!("{what}_units"), slots.len(), per)?,
    };
    if positions.len() != slots.len() || units.len() != slots.len() * per {
        return Err(value_error(format!(
            "{what}s: expected as many slots, boundaries and rows of {per} units, got {}, {} and {} \
             units",
            slots.len(),
            positions.len(),
            units.len()
        )));
    }
    Ok(Columns { slots, boundaries: positions, units })
}

/// A matrix of ids, flat.
fn rows(given: &Bound<'_, PyAny>, name: &str, count: usize, per: usize) -> PyResult<Vec<u32>> {
    if let Ok(array) = given.cast::<PyArray2<u32>>() {
        if array.shape() != [count, per] {
            let shape = array.shape();
            let message = format!("{name}: expected shape ({count}, {per}), got {shape:?}");
            return Err(value_error(message));
        }
        return Ok(array.readonly().as_array().iter().copied().collect());
    }
    let mut flat = Vec::with_capacity(count * per);
    for row in given.try_iter()? {
        let row = integers(&row?, name)?;
        if row.len() != per {
            let message = format!("{name}: expected rows of {per} units, got {}", row.len());
            return Err(value_error(message));
        }
        flat.extend(row);
    }
    Ok(flat)
}

fn each(
    ops: &mut MaintenanceOps,
    columns: &Columns,
    layout: &StateLayout,
    mut push: impl FnMut(&mut MaintenanceOps, u64, SlotId, Boundary, UnitRange),
) {
    let per = layout.units_per_checkpoint().index();
    let units: Vec<PageId> = columns.units.iter().map(|&unit| PageId::new(unit)).collect();
    for (n, (&slot, &boundary)) in columns.slots.iter().zip(&columns.boundaries).enumerate() {
        let range = ops.push_units(&units[n * per..][..per]);
        push(ops, n as u64, SlotId::new(slot), Boundary::from_raw(boundary), range);
    }
}
