//! The coordinator of `page_unit_checkpoint`: boundaries filed by sequences, drained into stores.
//!
//! ```text
//!   checkpoint(seq, h) --> pending --take_checkpoint_ops--> kept | dropped | already there
//!                             |  same sequence, another hash: dropped;  same hash: replaced
//!                             +- forget_pending: gone      unindex(h): orphaned
//! ```
//!
//! Invariants: a sequence has at most one pending boundary, because its slot holds one state; a
//! sequence is its object's identity; no lock is held while Python code runs, and a boundary leaves
//! the list only when it is drained, so what `on_evict` takes away meanwhile is not stored.

use std::collections::BTreeMap;
use std::sync::Mutex;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use statepages_page::ContentKey;

use super::key::key_of;
use super::no_surplus;
use super::pool::BlockPool;
use super::store::{Begun, PageUnitCheckpointStore};
use crate::bug::lock;

#[derive(Default)]
struct Filed {
    /// In the order of filing.
    pending: BTreeMap<u64, Boundary>,
    by_sequence: BTreeMap<usize, u64>,
    next: u64,
    kept: u64,
    dropped: u64,
    orphaned: u64,
}

struct Boundary {
    sequence: Py<PyAny>,
    hash: Py<PyAny>,
    key: ContentKey,
}

/// The coordinator.
#[pyclass(module = "statepages.compat.page_unit_checkpoint", subclass, frozen)]
pub(crate) struct PagedStateCheckpointCoordinator {
    store: Mutex<Py<PageUnitCheckpointStore>>,
    enabled: Mutex<bool>,
    filed: Mutex<Filed>,
}

#[pymethods]
impl PagedStateCheckpointCoordinator {
    #[classattr]
    #[pyo3(name = "successor_room")]
    const SUCCESSOR_ROOM: f64 = 0.0;

    #[classattr]
    #[pyo3(name = "readable_midstep")]
    const READABLE_MIDSTEP: bool = false;

    #[new]
    #[classmethod]
    #[pyo3(
        signature = (pool, spec, enabled, *args, **kwargs),
        text_signature = "(pool, spec, enabled)"
    )]
    fn new(
        cls: &Bound<'_, PyType>,
        pool: Py<BlockPool>,
        spec: &Bound<'_, PyAny>,
        enabled: bool,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        no_surplus(&cls.py().get_type::<Self>(), cls, args, kwargs)?;
        let kind = spec.py().get_type::<PageUnitCheckpointStore>();
        let store = kind.call1((pool, spec))?.cast_into::<PageUnitCheckpointStore>()?.unbind();
        Ok(Self {
            store: Mutex::new(store),
            enabled: Mutex::new(enabled),
            filed: Mutex::new(Filed::default()),
        })
    }

    #[pyo3(signature = (*_args, **_kwargs))]
    #[expect(clippy::unused_self, reason = "for a subclass to call; `__new__` has done it all")]
    fn __init__(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[getter(store)]
    fn get_store(&self, py: Python<'_>) -> PyResult<Py<PageUnitCheckpointStore>> {
        Ok(lock(&self.store)?.clone_ref(py))
    }

    #[setter(store)]
    fn set_store(&self, store: Py<PageUnitCheckpointStore>) -> PyResult<()> {
        let old = std::mem::replace(&mut *lock(&self.store)?, store);
        drop(old);
        Ok(())
    }

    #[getter(enabled)]
    fn get_enabled(&self) -> PyResult<bool> {
        Ok(*lock(&self.enabled)?)
    }

    #[setter(enabled)]
    fn set_enabled(&self, enabled: bool) -> PyResult<()> {
        *lock(&self.enabled)? = enabled;
        Ok(())
    }

    #[getter]
    fn checkpoints_kept(&self) -> PyResult<u64> {
        Ok(lock(&self.filed)?.kept)
    }

    #[getter]
    fn checkpoints_dropped(&self) -> PyResult<u64> {
        Ok(lock(&self.filed)?.dropped)
    }

    #[getter]
    fn checkpoints_orphaned(&self) -> PyResult<u64> {
        Ok(lock(&self.filed)?.orphaned)
    }

    #[staticmethod]
    fn reserve_midstep<'py>(
        seq: &Bound<'py, PyAny>,
        positions: &Bound<'py, PyAny>,
    ) -> Bound<'py, PyList> {
        let _: &Bound<'_, PyAny> = positions;
        PyList::empty(seq.py())
    }

    #[staticmethod]
    #[pyo3(signature = (reservations, seq=None))]
    fn publish_midstep(reservations: &Bound<'_, PyAny>, seq: Option<&Bound<'_, PyAny>>) {
        let _: (&Bound<'_, PyAny>, Option<&Bound<'_, PyAny>>) = (reservations, seq);
    }

    #[staticmethod]
    fn cancel_midstep(reservations: &Bound<'_, PyAny>) {
        let _: &Bound<'_, PyAny> = reservations;
    }

    fn applies(&self, seq: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = seq.py();
        Ok(self.get_enabled()? && seq.getattr(intern!(py, "has_per_req_cache"))?.is_truthy()?)
    }

    /// Blocks of a hit of `hit` blocks that can be resumed.
    #[pyo3(signature = (seq, hit, block_hashes, assume_checkpointed=false))]
    fn resumable_hit(
        &self,
        seq: &Bound<'_, PyAny>,
        hit: i64,
        block_hashes: &Bound<'_, PyAny>,
        assume_checkpointed: bool,
    ) -> PyResult<i64> {
        if !self.applies(seq)? {
            return Ok(hit);
        }
        if assume_checkpointed {
            return Ok(hit.max(0));
        }
        let store = self.get_store(seq.py())?;
        for blocks in (1..=hit).rev() {
            if store.get().contains(&block_hashes.get_item(blocks - 1)?)? {
                return Ok(blocks);
            }
        }
        Ok(0)
    }

    /// Files a boundary, to be stored by the next drain.
    fn checkpoint(
        &self,
        seq: &Bound<'_, PyAny>,
        boundary_blocks: &Bound<'_, PyAny>,
        h: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _: &Bound<'_, PyAny> = boundary_blocks;
        if !self.applies(seq)? || state_slot(seq)? < 0 {
            return Ok(());
        }
        let boundary =
            Boundary { sequence: seq.clone().unbind(), hash: h.clone().unbind(), key: key_of(h)? };
        let old = {
            let mut filed = lock(&self.filed)?;
            let filed = &mut *filed;
            let identity = seq.as_ptr() as usize;
            match filed.by_sequence.get(&identity) {
                Some(at) if filed.pending[at].key == boundary.key => {
                    filed.pending.insert(*at, boundary)
                }
                earlier => {
                    let old = earlier.and_then(|at| filed.pending.remove(at));
                    filed.dropped += u64::from(old.is_some());
                    filed.by_sequence.insert(identity, filed.next);
                    filed.pending.insert(filed.next, boundary);
                    filed.next += 1;
                    old
                }
            }
        };
        drop(old);
        Ok(())
    }

    /// The sequence gives its slot back: nothing is stored from it or restored into it any more.
    fn forget_pending(&self, seq: &Bound<'_, PyAny>) -> PyResult<()> {
        let old = {
            let mut filed = lock(&self.filed)?;
            let at = filed.by_sequence.remove(&(seq.as_ptr() as usize));
            at.and_then(|at| filed.pending.remove(&at))
        };
        drop(old);
        let store = self.get_store(seq.py())?;
        store.get().cancel_queued_restore(state_slot(seq)?)
    }

    fn begin_restore(&self, h: &Bound<'_, PyAny>, dst_slot: &Bound<'_, PyAny>) -> PyResult<bool> {
        let store = self.get_store(h.py())?;
        Ok(store.get().begin_restore(h, dst_slot)?.is_some())
    }

    /// Drains what is pending and queued, for a batch that really runs.
    fn take_checkpoint_ops<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyTuple>)> {
        let store = self.get_store(py)?;
        let store = store.bind(py);
        // What is filed while it drains waits for the next drain.
        let end = lock(&self.filed)?.next;
        let mut stores = Vec::new();
        loop {
            let boundary = {
                let mut filed = lock(&self.filed)?;
                let first = filed.pending.first_key_value().map(|(&at, _)| at);
                let Some(at) = first.filter(|&at| at < end) else { break };
                let boundary = filed.pending.remove(&at);
                boundary.inspect(|boundary| {
                    filed.by_sequence.remove(&(boundary.sequence.as_ptr() as usize));
                })
            };
            let Some(Boundary { sequence, hash, .. }) = boundary else { break };
            let (sequence, hash) = (sequence.bind(py), hash.bind(py));
            let slot = sequence.getattr(intern!(py, "state_slot"))?;
            if slot.extract::<i64>()? < 0 || store.get().contains_or_pending(hash)? {
                continue;
            }
            match PageUnitCheckpointStore::begin_store(store, hash, &slot)? {
                Begun::Op(op) => {
                    lock(&self.filed)?.kept += 1;
                    stores.push(op);
                }
                Begun::Refused => lock(&self.filed)?.dropped += 1,
                // `unindex` has counted it.
                Begun::Orphaned => {}
            }
        }
        Ok((PyTuple::new(py, stores)?, store.get().take_restore_ops(py)?))
    }

    fn complete_previous_batch(&self, py: Python<'_>) -> PyResult<()> {
        self.get_store(py)?.get().complete_inflight()
    }

    #[pyo3(signature = (count, protected_hash=None))]
    fn has_available_units(
        &self,
        count: i64,
        protected_hash: Option<&Bound<'_, PyAny>>,
        py: Python<'_>,
    ) -> PyResult<bool> {
        self.get_store(py)?.get().has_available_units(count, protected_hash)
    }

    fn ensure_free_units(&self, count: i64, py: Python<'_>) -> PyResult<bool> {
        PageUnitCheckpointStore::ensure_free_units(self.get_store(py)?.bind(py), count)
    }

    /// The KV under a hash is gone: what is pending or kept under it goes with it, counted once.
    fn unindex(&self, h: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = key_of(h)?;
        let mut stale = Vec::new();
        {
            let mut filed = lock(&self.filed)?;
            let filed = &mut *filed;
            stale.extend(filed.pending.extract_if(.., |_, boundary| boundary.key == key));
            for (_, boundary) in &stale {
                filed.by_sequence.remove(&(boundary.sequence.as_ptr() as usize));
            }
        }
        let store = self.get_store(h.py())?;
        let removed = store.get().unindex(h)?;
        if removed || !stale.is_empty() {
            lock(&self.filed)?.orphaned += 1;
        }
        drop(stale);
        Ok(())
    }

    /// Drops everything. None of the fates moves.
    fn clear_index(&self, py: Python<'_>) -> PyResult<()> {
        let pending = {
            let mut filed = lock(&self.filed)?;
            filed.by_sequence.clear();
            std::mem::take(&mut filed.pending)
        };
        drop(pending);
        self.get_store(py)?.get().clear()
    }

    fn checkpoint_fates<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (kept, dropped, orphaned) = {
            let filed = lock(&self.filed)?;
            (filed.kept, filed.dropped, filed.orphaned)
        };
        let store = self.get_store(py)?;
        let fates = PyDict::new(py);
        fates.set_item("checkpoints_kept", kept)?;
        fates.set_item("checkpoints_dropped", dropped)?;
        fates.set_item("checkpoints_evicted", store.get().evictions()?)?;
        fates.set_item("checkpoints_orphaned", orphaned)?;
        Ok(fates)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(store) = self.store.try_lock() {
            visit.call(&*store)?;
        }
        if let Ok(filed) = self.filed.try_lock() {
            for boundary in filed.pending.values() {
                visit.call(&boundary.sequence)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        if let Ok(mut filed) = self.filed.try_lock() {
            filed.by_sequence.clear();
            filed.pending.clear();
        }
    }
}

fn state_slot(seq: &Bound<'_, PyAny>) -> PyResult<i64> {
    seq.getattr(intern!(seq.py(), "state_slot"))?.extract()
}
