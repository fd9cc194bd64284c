//! The checkpoint store of `page_unit_checkpoint`: its names and behaviour, on the records of
//! `statepages-store`.
//!
//! ```text
//!   begin_store --> COPYING --complete_inflight--> READY --begin_restore--> READY, pinned (queued)
//!                      |                             |                        | take_restore_ops
//!                      | unindex, clear              | evicted, unindexed     v
//!                      v                             v                      in flight --complete_inflight-->
//!                   EVICTING --complete_inflight--> gone                    pin returned
//! ```
//!
//! Invariants:
//! - records, units and pins are `CheckpointStore`'s; this file adds what the interface has beside
//!   it: the queue of restores, what a tick completes, and the order of use (moved by `begin_restore`
//!   alone), which `_next_victim` chooses by and a subclass may override;
//! - what is eligible, and how many units could be had, is the core's one rule and count, whatever
//!   `_next_victim` answers; victims are planned first, so a policy that declines has cost nothing;
//! - no lock is held while Python code runs.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use statepages_page::{Boundary, CheckpointId, ContentKey, PageId, Pages, RequestId};
use statepages_store::parts::{CheckpointStore, Image, Order, RecordIndex, Unindexed, Written};
use statepages_store::{KeepReason, RecordState};

use super::key::{hash_of, key_of};
use super::no_surplus;
use super::pool::{BlockPool, PoolCore};
use super::record::CheckpointRecord;
use super::values::{CheckpointRestoreOp, CheckpointStoreOp, Field};
use crate::bug::{bug, guarded, lock};

/// Records, and what the interface has beside them.
pub(crate) struct StoreCore {
    pub(crate) store: CheckpointStore,
    /// READY records, the one begun to be read longest ago ahead.
    order: Order,
    writers: Vec<RecordIndex>,
    queued: Vec<Queued>,
    readers: Vec<RecordIndex>,
    pages: Vec<PageId>,
    evicted: Vec<ContentKey>,
    evictions: u64,
}

struct Queued {
    record: RecordIndex,
    slot: i64,
    op: Py<CheckpointRestoreOp>,
}

/// What `begin_store` came to.
pub(crate) enum Begun {
    /// The store has to ride the next batch.
    Op(Py<CheckpointStoreOp>),
    /// The key is READY or being written, or no room could be made.
    Refused,
    /// The key was lost while its units were being reserved: they have been given back.
    Orphaned,
}

impl StoreCore {
    fn next_victim(&self, protected: Option<CheckpointId>) -> Option<RecordIndex> {
        self.order.iter().find(|&index| {
            self.store.is_unpinned_ready(index) && Some(self.store.id(index)) != protected
        })
    }

    /// Ends READY records that may be given up.
    fn evict(&mut self, index: RecordIndex, pool: &mut PoolCore) {
        self.order.remove(index);
        self.store.evict(index, &mut pool.pool);
        self.evictions += 1;
    }

    fn available(&self, pool: &PoolCore, protected: Option<RecordIndex>) -> i64 {
        i64::from(pool.pool.free()) + i64::from(self.store.evictable_units(protected))
    }

    fn unindex(&mut self, key: ContentKey, pool: &mut PoolCore) -> bool {
        if let Some(index) = self.store.lookup(key) {
            self.order.remove(index);
        }
        match self.store.unindex(key, &mut pool.pool) {
            Unindexed::Nothing => false,
            Unindexed::Copying | Unindexed::Ready(_) => true,
        }
    }
}

/// The store.
#[pyclass(module = "statepages.compat.page_unit_checkpoint", subclass, frozen)]
pub(crate) struct PageUnitCheckpointStore {
    #[pyo3(get)]
    pool: Py<BlockPool>,
    #[pyo3(get)]
    spec: Py<PyAny>,
    image_bytes: Py<PyAny>,
    layout_id: Py<PyAny>,
    units_per_checkpoint: u32,
    pages: Arc<Mutex<PoolCore>>,
    pub(crate) core: Arc<Mutex<StoreCore>>,
}

#[pymethods]
impl PageUnitCheckpointStore {
    #[new]
    #[classmethod]
    #[pyo3(signature = (pool, spec, *args, **kwargs), text_signature = "(pool, spec)")]
    fn new(
        cls: &Bound<'_, PyType>,
        pool: Py<BlockPool>,
        spec: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let py = spec.py();
        no_surplus(&py.get_type::<Self>(), cls, args, kwargs)?;
        let units: u32 = spec.getattr(intern!(py, "units_per_checkpoint"))?.extract()?;
        if units == 0 {
            return Err(PyValueError::new_err("units_per_checkpoint: expected at least 1, got 0"));
        }
        let max = Pages::new(pool.get().max_blocks());
        let records = max.get() / units;
        let core = StoreCore {
            store: CheckpointStore::new(Some(Pages::new(units)), max),
            order: Order::new(records),
            writers: Vec::new(),
            queued: Vec::new(),
            readers: Vec::new(),
            pages: Vec::new(),
            evicted: Vec::new(),
            evictions: 0,
        };
        Ok(Self {
            pages: Arc::clone(&pool.get().core),
            pool,
            image_bytes: spec.getattr(intern!(py, "image_bytes"))?.unbind(),
            layout_id: spec.getattr(intern!(py, "layout_id"))?.unbind(),
            spec: spec.clone().unbind(),
            units_per_checkpoint: units,
            core: Arc::new(Mutex::new(core)),
        })
    }

    #[pyo3(signature = (*_args, **_kwargs))]
    #[expect(clippy::unused_self, reason = "for a subclass to call; `__new__` has done it all")]
    fn __init__(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[getter]
    const fn units_per_checkpoint(&self) -> u32 {
        self.units_per_checkpoint
    }

    #[getter]
    pub(crate) fn evictions(&self) -> PyResult<u64> {
        Ok(lock(&self.core)?.evictions)
    }

    fn lookup(&self, prefix_hash: &Bound<'_, PyAny>) -> PyResult<i64> {
        let key = key_of(prefix_hash)?;
        let core = lock(&self.core)?;
        Ok(core.store.lookup(key).map_or(-1, |index| core.store.id(index).raw() as i64))
    }

    pub(crate) fn contains(&self, prefix_hash: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = key_of(prefix_hash)?;
        Ok(lock(&self.core)?.store.lookup(key).is_some())
    }

    pub(crate) fn contains_or_pending(&self, prefix_hash: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = key_of(prefix_hash)?;
        let core = lock(&self.core)?;
        Ok(core.store.lookup(key).is_some() || core.store.is_copying(key))
    }

    /// The least recently used eligible checkpoint, -1 where there is none. A subclass that
    /// overrides it decides which eligible checkpoint goes first.
    #[pyo3(signature = (protected=-1))]
    fn _next_victim(&self, protected: i64) -> PyResult<i64> {
        let protected = u64::try_from(protected).ok().map(CheckpointId::new);
        let core = lock(&self.core)?;
        let victim = core.next_victim(protected);
        Ok(victim.map_or(-1, |index| core.store.id(index).raw() as i64))
    }

    #[pyo3(signature = (count, protected_hash=None))]
    pub(crate) fn has_available_units(
        &self,
        count: i64,
        protected_hash: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let protected = protected_hash.map(key_of).transpose()?;
        let pool = lock(&self.pages)?;
        let core = lock(&self.core)?;
        let protected = protected.and_then(|key| core.store.lookup(key));
        Ok(count <= core.available(&pool, protected))
    }

    pub(crate) fn ensure_free_units(slf: &Bound<'_, Self>, count: i64) -> PyResult<bool> {
        let this = slf.get();
        if !slf.is_exact_instance_of::<Self>() {
            return this.ensure_by_override(slf, count);
        }
        let mut pool = lock(&this.pages)?;
        let mut core = lock(&this.core)?;
        if count > core.available(&pool, None) {
            return Ok(false);
        }
        this.make_room(&mut core, &mut pool, count)?;
        Ok(true)
    }

    #[pyo3(name = "begin_store")]
    fn begin_store_method(
        slf: &Bound<'_, Self>,
        prefix_hash: &Bound<'_, PyAny>,
        src_slot: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Py<CheckpointStoreOp>>> {
        match Self::begin_store(slf, prefix_hash, src_slot)? {
            Begun::Op(op) => Ok(Some(op)),
            Begun::Refused | Begun::Orphaned => Ok(None),
        }
    }

    pub(crate) fn begin_restore(
        &self,
        prefix_hash: &Bound<'_, PyAny>,
        dst_slot: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Py<CheckpointRestoreOp>>> {
        let py = prefix_hash.py();
        let key = key_of(prefix_hash)?;
        let slot = dst_slot.extract()?;
        let (record, units) = {
            let mut core = lock(&self.core)?;
            let Some(record) = core.store.lookup(key) else { return Ok(None) };
            let units = Field::units(core.store.units(record));
            core.store.pin(record);
            core.order.remove(record);
            core.order.push_back(record);
            (record, units)
        };
        // The pin keeps the record while no lock is held.
        let op = Py::new(
            py,
            CheckpointRestoreOp {
                dst_slot: Field::Python(dst_slot.clone().unbind()),
                unit_ids: units,
                total_bytes: Field::Python(self.image_bytes.clone_ref(py)),
                layout_id: Field::Python(self.layout_id.clone_ref(py)),
            },
        )?;
        lock(&self.core)?.queued.push(Queued { record, slot, op: op.clone_ref(py) });
        Ok(Some(op))
    }

    pub(crate) fn take_restore_ops<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let queued = {
            let mut core = lock(&self.core)?;
            let queued = std::mem::take(&mut core.queued);
            core.readers.extend(queued.iter().map(|restore| restore.record));
            queued
        };
        PyTuple::new(py, queued.into_iter().map(|restore| restore.op))
    }

    pub(crate) fn cancel_queued_restore(&self, dst_slot: i64) -> PyResult<()> {
        let mut cancelled = Vec::new();
        {
            let mut pool = lock(&self.pages)?;
            let mut core = lock(&self.core)?;
            let core = &mut *core;
            cancelled.extend(core.queued.extract_if(.., |restore| restore.slot == dst_slot));
            for restore in &cancelled {
                core.store.unpin(restore.record, &mut pool.pool);
            }
        }
        drop(cancelled);
        Ok(())
    }

    /// Publishes the stores and returns the pins of the batches handed out so far: the receipts that
    /// the interface of a tick stands for.
    pub(crate) fn complete_inflight(&self) -> PyResult<()> {
        let mut pool = lock(&self.pages)?;
        let mut core = lock(&self.core)?;
        let core = &mut *core;
        guarded(|| {
            for index in core.writers.drain(..) {
                match core.store.publish(index, &mut pool.pool) {
                    Written::Ready(_) => core.order.push_back(index),
                    Written::Ended => {}
                }
            }
            for index in core.readers.drain(..) {
                core.store.unpin(index, &mut pool.pool);
            }
        })
    }

    pub(crate) fn unindex(&self, prefix_hash: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = key_of(prefix_hash)?;
        let mut pool = lock(&self.pages)?;
        let mut core = lock(&self.core)?;
        guarded(|| core.unindex(key, &mut pool))
    }

    pub(crate) fn clear(&self) -> PyResult<()> {
        let mut pool = lock(&self.pages)?;
        let mut core = lock(&self.core)?;
        let core = &mut *core;
        guarded(|| {
            while let Some(index) = core.order.first() {
                core.order.remove(index);
            }
            core.store.clear(&mut pool.pool, |_, _| {});
        })
    }

    /// A record, for the live view `records`.
    fn _record(&self, checkpoint_id: i64, py: Python<'_>) -> PyResult<Option<CheckpointRecord>> {
        let id = CheckpointId::new(u64::try_from(checkpoint_id).unwrap_or(u64::MAX));
        let (key, units) = {
            let core = lock(&self.core)?;
            let Some(index) = core.store.find(id) else { return Ok(None) };
            let units: Vec<u32> = core.store.units(index).iter().map(|page| page.raw()).collect();
            (core.store.image(index).key, units)
        };
        let hash = hash_of(py, key)?.unbind();
        let units = PyTuple::new(py, units)?.unbind();
        Ok(Some(CheckpointRecord::live(Arc::clone(&self.core), id, hash, units.into_any())))
    }

    /// Ids of all records, ascending, for the live view `records`.
    fn _record_ids(&self) -> PyResult<Vec<u64>> {
        let core = lock(&self.core)?;
        let mut ids: Vec<u64> = core.store.views().map(|record| record.id.raw()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Hash and id of every READY record, ids ascending, for the live view `hash_to_checkpoint`.
    fn _ready<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyAny>, u64)>> {
        let mut ready: Vec<(ContentKey, u64)> = {
            let core = lock(&self.core)?;
            let found = |record: &statepages_store::RecordView<'_>| {
                matches!(record.state, RecordState::Ready { .. })
            };
            core.store.views().filter(found).map(|record| (record.key, record.id.raw())).collect()
        };
        ready.sort_unstable_by_key(|&(_, id)| id);
        ready.into_iter().map(|(key, id)| Ok((hash_of(py, key)?, id))).collect()
    }

    #[getter]
    fn _counts(&self) -> PyResult<(u32, u32)> {
        let core = lock(&self.core)?;
        let all = core.store.copying() + core.store.ready() + core.store.evicting();
        Ok((all, core.store.ready()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pool)?;
        visit.call(&self.spec)
    }
}

impl PageUnitCheckpointStore {
    /// Gives up the least recently used until `count` blocks are free, which the gate has promised.
    #[expect(clippy::unused_self, reason = "the store whose locks are held")]
    fn make_room(&self, core: &mut StoreCore, pool: &mut PoolCore, count: i64) -> PyResult<()> {
        while i64::from(pool.pool.free()) < count {
            let Some(victim) = core.next_victim(None) else {
                return Err(bug("the gate has promised units that nothing holds"));
            };
            core.evict(victim, pool);
        }
        Ok(())
    }

    /// The same by a subclass's `_next_victim`. Victims are pinned while the plan is made, so that
    /// they are chosen once; only a complete plan is carried out.
    fn ensure_by_override(&self, slf: &Bound<'_, Self>, count: i64) -> PyResult<bool> {
        let py = slf.py();
        let mut plan: Vec<(CheckpointId, RecordIndex)> = Vec::new();
        let outcome = loop {
            {
                let pool = lock(&self.pages)?;
                let core = lock(&self.core)?;
                let planned = plan.len() as i64 * i64::from(self.units_per_checkpoint);
                if count > core.available(&pool, None) + planned {
                    break Ok(false);
                }
                if count <= i64::from(pool.pool.free()) + planned {
                    break Ok(true);
                }
            }
            let victim = slf.call_method0(intern!(py, "_next_victim"));
            let victim = match victim.and_then(|victim| victim.extract::<i64>()) {
                Ok(victim) if victim < 0 => break Ok(false),
                Ok(victim) => CheckpointId::new(victim as u64),
                Err(error) => break Err(error),
            };
            let mut core = lock(&self.core)?;
            let Some(index) =
                core.store.find(victim).filter(|&index| core.store.is_unpinned_ready(index))
            else {
                break Err(bug(format!(
                    "_next_victim: expected an unpinned READY checkpoint, got {}",
                    victim.raw()
                )));
            };
            core.store.pin(index);
            plan.push((victim, index));
        };
        let mut pool = lock(&self.pages)?;
        let mut core = lock(&self.core)?;
        guarded(|| {
            for &(id, index) in &plan {
                core.store.unpin(index, &mut pool.pool);
                // What the override has unindexed meanwhile has ended with this pin.
                let wanted = matches!(outcome, Ok(true)) && core.store.find(id) == Some(index);
                if wanted && i64::from(pool.pool.free()) < count {
                    core.evict(index, &mut pool);
                }
            }
        })?;
        outcome.map(|made| made && i64::from(pool.pool.free()) >= count)
    }

    /// Makes room, takes units and begins a record.
    pub(crate) fn begin_store(
        slf: &Bound<'_, Self>,
        prefix_hash: &Bound<'_, PyAny>,
        src_slot: &Bound<'_, PyAny>,
    ) -> PyResult<Begun> {
        let (this, py) = (slf.get(), slf.py());
        let key = key_of(prefix_hash)?;
        let needed = i64::from(this.units_per_checkpoint);
        let overridden = !slf.is_exact_instance_of::<Self>();
        if overridden
            && (this.contains_or_pending(prefix_hash)? || !this.ensure_by_override(slf, needed)?)
        {
            return Ok(Begun::Refused);
        }
        let trash;
        let (index, units, evicted) = {
            let mut pool = lock(&this.pages)?;
            let mut core = lock(&this.core)?;
            let core = &mut *core;
            if core.store.lookup(key).is_some() || core.store.is_copying(key) {
                return Ok(Begun::Refused);
            }
            if needed > core.available(&pool, None) {
                return Ok(Begun::Refused);
            }
            if needed > i64::from(pool.pool.free()) {
                if overridden {
                    return Ok(Begun::Refused);
                }
                this.make_room(core, &mut pool, needed)?;
            }
            core.pages.clear();
            core.evicted.clear();
            pool.hold(this.units_per_checkpoint, &mut core.pages, &mut core.evicted);
            let image = Image {
                key,
                boundary: Boundary::ZERO,
                reason: KeepReason::Grid,
                request: RequestId::new(0),
            };
            let index = core.store.begin(image, &core.pages, &mut pool.pool);
            let evicted = std::mem::take(&mut core.evicted);
            trash = std::mem::take(&mut pool.trash);
            (index, Field::units(&core.pages), evicted)
        };
        drop(trash);
        // A record in writing ends by a tick alone, and no tick knows of it before it is handed out: so
        // it lives while no lock is held.
        if !evicted.is_empty() {
            let told = this.pool.get().tell_evicted(py, &evicted);
            let mut pool = lock(&this.pages)?;
            let mut core = lock(&this.core)?;
            core.evicted = evicted;
            let lost = !core.store.is_wanted(index);
            if told.is_err() || lost {
                core.store.fail(index, &mut pool.pool);
                return told.map(|()| Begun::Orphaned);
            }
        }
        lock(&this.core)?.writers.push(index);
        let op = CheckpointStoreOp {
            src_slot: Field::Python(src_slot.clone().unbind()),
            unit_ids: units,
            total_bytes: Field::Python(this.image_bytes.clone_ref(py)),
            layout_id: Field::Python(this.layout_id.clone_ref(py)),
        };
        Ok(Begun::Op(Py::new(py, op)?))
    }
}
