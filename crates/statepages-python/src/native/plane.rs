//! The control plane: one owner of pool, prefix index, checkpoint store and slots.
//!
//! ```text
//!   settle, advance, file --> try_admit, append_block, release --> begin_batch, join --> copies, forward
//! ```
//!
//! Refusals are values (`Refused`, which is false, or a word); a bug raises `AssertionError`, and the
//! control plane is then broken; what the world got wrong raises an error of its own.
//! Calls with `_many` do the same for lists, in order.

use std::sync::Arc;

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use statepages_page::{Boundary, Pages, RequestId, Tokens};
use statepages_store::{
    Admit, AdmitRequest, Ahead, Append, BackendOrder, Caching, CheckpointInterval, Chunk,
    ControlPlane, ControlPlaneConfig, Filed, Hit, KeepReason, KvEvent, Outcome, Progress,
    RecordState, ReferenceOrder, Refusal, Released, Relocate, Retire, Schedulers, Scope,
    Speculation, Statepages, VictimPolicy,
};

use super::admitted::{PyAdmitted, PyRefused, PyScope};
use super::error::{LostCheckpoint, value_error};
use super::keys::{PyPromptKeys, block, integers};
use super::ops::{PyMaintenanceOps, Spares};
use super::runtime::PyStateRuntime;
use super::ticket::{PyBatch, PyResidency, PyScratch, PyTicket, Shared};

/// The control plane.
#[pyclass(name = "ControlPlane", module = "statepages", frozen)]
pub(crate) struct PyControlPlane {
    shared: Arc<Shared>,
    spares: Arc<Spares>,
    #[pyo3(get)]
    interval: i64,
    #[pyo3(get)]
    block_size: u32,
}

#[pymethods]
impl PyControlPlane {
    /// `interval` is the grid of checkpoints in tokens (0: none, -1: anchors only), snapped down to
    /// whole blocks. `ordered` says that copies and forwards take effect in the order of submission.
    /// `policy` is who is given up when pages are short: "reference" is cached KV first, then the
    /// checkpoint used longest ago; "statepages" keeps what will be read.
    #[new]
    #[pyo3(signature = (
        *, pages, slots, runtime, block_size=256, pages_max=None, interval=8192, caching=true,
        ordered=true, speculation=false, copying_max=None, pipeline_stages=1,
        separate_schedulers=false, events_max=0, policy="reference"
    ))]
    #[expect(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "named in Python"
    )]
    fn new(
        pages: u32,
        slots: u32,
        runtime: &PyStateRuntime,
        block_size: u32,
        pages_max: Option<u32>,
        interval: i64,
        caching: bool,
        ordered: bool,
        speculation: bool,
        copying_max: Option<u32>,
        pipeline_stages: u32,
        separate_schedulers: bool,
        events_max: u32,
        policy: &str,
    ) -> PyResult<Self> {
        let block = block(block_size)?;
        let (grid, snapped) = CheckpointInterval::parse(interval, block).map_err(value_error)?;
        let config = ControlPlaneConfig {
            pages: Pages::new(pages),
            pages_max: Pages::new(pages_max.unwrap_or(pages)),
            slots,
            block,
            runtime: runtime.runtime.clone(),
            caching: if caching { Caching::On } else { Caching::Off },
            interval: grid,
            copying_max: copying_max.map(Pages::new),
            order: if ordered { BackendOrder::Ordered } else { BackendOrder::Unordered },
            speculation: if speculation { Speculation::On } else { Speculation::Off },
            pipeline_stages,
            schedulers: if separate_schedulers {
                Schedulers::SeparatePrefillDecode
            } else {
                Schedulers::Unified
            },
            events_max,
        };
        let units =
            config.runtime.spec().map(statepages_store::CheckpointSpec::units_per_checkpoint);
        let policy: Box<dyn VictimPolicy> = match (policy, units) {
            ("reference", _) => Box::new(ReferenceOrder),
            ("statepages", Some(units)) => Box::new(Statepages::new(config.pages_max, units)),
            ("statepages", None) => {
                return Err(value_error("policy: statepages wants a runtime that copies state"));
            }
            (other, _) => {
                let message = format!("policy: expected reference or statepages, got {other:?}");
                return Err(value_error(message));
            }
        };
        let plane = ControlPlane::new(config, policy).map_err(value_error)?;
        let interval = snapped.map_or(interval, |snapped| i64::from(snapped.used));
        Ok(Self { shared: Shared::new(plane), spares: Arc::default(), interval, block_size })
    }

    /// `(kv, resumable)`: tokens of found blocks, and tokens that could be resumed. Touches nothing.
    fn probe(&self, keys: &PyPromptKeys) -> PyResult<(u32, u32)> {
        self.usable(keys)?;
        let Hit { kv, resumable, .. } = self.shared.with(|plane| plane.probe(&keys.keys))?;
        Ok((kv.get(), resumable.get()))
    }

    /// Decides and reserves: slot, pin, found blocks, fresh pages. `Refused` has taken nothing.
    #[pyo3(signature = (request, keys, *, gated=None))]
    fn try_admit<'py>(
        &self,
        request: u64,
        keys: &PyPromptKeys,
        gated: Option<u32>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.usable(keys)?;
        let gated = gated.map(Boundary::from_raw);
        let request = AdmitRequest { request: RequestId::new(request), keys: &keys.keys, gated };
        match self.shared.with(|plane| plane.try_admit(&request))? {
            Ok(Admit::Admitted(residency, report)) => {
                let residency = Py::new(py, PyResidency::new(residency, &self.shared))?;
                Ok(Bound::new(py, PyAdmitted { residency, report })?.into_any())
            }
            Ok(Admit::Refused(refusal)) => {
                let reason = match refusal {
                    Refusal::NoSlot => "no_slot",
                    Refusal::NoRoom => "no_room",
                };
                Ok(Bound::new(py, PyRefused { reason })?.into_any())
            }
            Err(lost) => Err(LostCheckpoint::new_err(lost.to_string())),
        }
    }

    fn admit_many<'py>(
        &self,
        requests: &Bound<'py, PyAny>,
        keys: Vec<PyRef<'py, PyPromptKeys>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = requests.py();
        let requests = integers(requests, "requests")?;
        same_length("keys", keys.len(), requests.len())?;
        let admitted = requests.iter().zip(&keys);
        let admitted: Vec<_> = admitted
            .map(|(&request, keys)| self.try_admit(u64::from(request), keys, None, py))
            .collect::<PyResult<_>>()?;
        PyList::new(py, admitted)
    }

    /// One more page for a residency; `None` where none can be had.
    fn append_block(&self, residency: &mut PyResidency) -> PyResult<Option<u32>> {
        let residency = residency.of(&self.shared)?;
        match self.shared.with(|plane| plane.append_block(residency))? {
            Append::Done(page) => Ok(Some(page.raw())),
            Append::NoRoom => Ok(None),
        }
    }

    /// The one door out. Answers "free", or "fenced" until the batches in flight are settled.
    fn release(&self, residency: &mut PyResidency) -> PyResult<&'static str> {
        let residency = residency.take(&self.shared)?;
        Ok(match self.shared.with(|plane| plane.release(residency))? {
            Released::Free => "free",
            Released::Fenced => "fenced",
        })
    }

    fn release_many(&self, residencies: Vec<Bound<'_, PyResidency>>) -> PyResult<()> {
        for residency in residencies {
            self.release(&mut *residency.try_borrow_mut()?)?;
        }
        Ok(())
    }

    /// Moves a residency to another slot by the next batch: `(from, to)`, or `Refused`.
    fn relocate<'py>(
        &self,
        residency: &mut PyResidency,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let residency = residency.of(&self.shared)?;
        let reason = match self.shared.with(|plane| plane.relocate(residency))? {
            Relocate::Queued { from, to } => {
                return Ok((from.raw(), to.raw()).into_pyobject(py)?.into_any());
            }
            Relocate::NoSlot => "no_slot",
            Relocate::Busy => "busy",
        };
        Ok(Bound::new(py, PyRefused { reason })?.into_any())
    }

    /// Tokens whose forward has been built into some batch.
    fn scheduled(&self, residency: &mut PyResidency) -> PyResult<u32> {
        let residency = residency.of(&self.shared)?;
        Ok(self.shared.with(|plane| plane.scheduled(residency))?.get())
    }

    /// Tokens whose forward is reported.
    fn computed(&self, residency: &mut PyResidency) -> PyResult<u32> {
        let residency = residency.of(&self.shared)?;
        Ok(self.shared.with(|plane| plane.computed(residency))?.get())
    }

    /// Reports that the first `computed` tokens are done; publishes the blocks they complete.
    fn advance(
        &self,
        residency: &mut PyResidency,
        keys: &PyPromptKeys,
        computed: u32,
    ) -> PyResult<()> {
        let residency = residency.of(&self.shared)?;
        self.shared.with(|plane| plane.advance(residency, &keys.keys, Tokens::new(computed)))
    }

    fn advance_many(
        &self,
        residencies: Vec<Bound<'_, PyResidency>>,
        keys: Vec<PyRef<'_, PyPromptKeys>>,
        computed: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let computed = integers(computed, "computed")?;
        same_length("keys", keys.len(), residencies.len())?;
        same_length("computed", computed.len(), residencies.len())?;
        for ((residency, keys), computed) in residencies.iter().zip(&keys).zip(computed) {
            self.advance(&mut *residency.try_borrow_mut()?, keys, computed)?;
        }
        Ok(())
    }

    /// Takes back scheduled tokens that a verification rejected.
    fn rewind(&self, residency: &mut PyResidency, accepted: u32) -> PyResult<()> {
        let residency = residency.of(&self.shared)?;
        self.shared.with(|plane| plane.rewind(residency, Tokens::new(accepted)))
    }

    /// Reports that a remote load has written pages and slot up to boundary `to`.
    fn accept_load(
        &self,
        residency: &mut PyResidency,
        keys: &PyPromptKeys,
        to: u32,
    ) -> PyResult<()> {
        let residency = residency.of(&self.shared)?;
        self.shared.with(|plane| plane.accept_load(residency, &keys.keys, Boundary::from_raw(to)))
    }

    /// Files a boundary, to be stored from the residency's slot by the next batch. Answers "pending",
    /// "replaced", "off" or "stale".
    fn file(
        &self,
        residency: &mut PyResidency,
        keys: &PyPromptKeys,
        boundary: u32,
        reason: &str,
    ) -> PyResult<&'static str> {
        let residency = residency.of(&self.shared)?;
        let (boundary, reason) = (Boundary::from_raw(boundary), reason_of(reason)?);
        let key = key_at(keys, boundary)?;
        let filed = self.shared.with(|plane| plane.file(residency, boundary, key, reason))?;
        Ok(filed_name(filed))
    }

    fn file_many(
        &self,
        residencies: Vec<Bound<'_, PyResidency>>,
        keys: Vec<PyRef<'_, PyPromptKeys>>,
        boundaries: &Bound<'_, PyAny>,
        reason: &str,
    ) -> PyResult<Vec<&'static str>> {
        let boundaries = integers(boundaries, "boundaries")?;
        same_length("keys", keys.len(), residencies.len())?;
        same_length("boundaries", boundaries.len(), residencies.len())?;
        let all = residencies.iter().zip(&keys).zip(boundaries);
        all.map(|((residency, keys), boundary)| {
            self.file(&mut *residency.try_borrow_mut()?, keys, boundary, reason)
        })
        .collect()
    }

    /// A slot for a forward to write an interior state into; `None` where none is free.
    fn reserve_scratch(
        &self,
        residency: &mut PyResidency,
        boundary: u32,
    ) -> PyResult<Option<PyScratch>> {
        let residency = residency.of(&self.shared)?;
        let boundary = Boundary::from_raw(boundary);
        let scratch = self.shared.with(|plane| plane.reserve_scratch(residency, boundary))?;
        Ok(scratch.map(|scratch| PyScratch::new(scratch, &self.shared)))
    }

    /// Files the boundary whose state a scratch slot holds, once the batch that wrote it is settled.
    fn file_scratch(
        &self,
        scratch: &mut PyScratch,
        keys: &PyPromptKeys,
        reason: &str,
    ) -> PyResult<&'static str> {
        let boundary = scratch.of(&self.shared)?.boundary();
        let (key, reason) = (key_at(keys, boundary)?, reason_of(reason)?);
        let scratch = scratch.take(&self.shared)?;
        Ok(filed_name(self.shared.with(|plane| plane.file_scratch(scratch, key, reason))?))
    }

    /// Gives a scratch slot back unused.
    fn release_scratch(&self, scratch: &mut PyScratch) -> PyResult<&'static str> {
        let scratch = scratch.take(&self.shared)?;
        Ok(match self.shared.with(|plane| plane.release_scratch(scratch))? {
            Released::Free => "free",
            Released::Fenced => "fenced",
        })
    }

    /// Starts a batch that really runs and drains into its `ops` what is pending and queued.
    fn begin_batch(&self, py: Python<'_>) -> PyResult<PyBatch> {
        let mut ops = self.spares.take();
        let receipt = self.shared.with(|plane| plane.begin_batch(&mut ops))?;
        let id = receipt.batch().raw();
        let receipt = Py::new(py, PyTicket::new(receipt, &self.shared))?;
        Ok(PyBatch {
            receipt,
            ops: Py::new(py, PyMaintenanceOps::recycled(ops, &self.spares))?,
            id,
        })
    }

    /// Makes a residency a member: the batch's forward takes it to `to` tokens.
    fn join(
        &self,
        batch: &PyBatch,
        residency: &mut PyResidency,
        to: u32,
        py: Python<'_>,
    ) -> PyResult<()> {
        let residency = residency.of(&self.shared)?;
        let mut receipt = batch.receipt.bind(py).try_borrow_mut()?;
        let receipt = receipt.of(&self.shared)?;
        self.shared.with(|plane| plane.join(receipt, residency, Tokens::new(to)))
    }

    fn join_many(
        &self,
        batch: &PyBatch,
        residencies: Vec<Bound<'_, PyResidency>>,
        to: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (py, to) = (to.py(), integers(to, "to")?);
        same_length("to", to.len(), residencies.len())?;
        for (residency, to) in residencies.iter().zip(to) {
            self.join(batch, &mut *residency.try_borrow_mut()?, to, py)?;
        }
        Ok(())
    }

    /// Makes the batch write a scratch slot.
    fn join_scratch(
        &self,
        batch: &PyBatch,
        scratch: &mut PyScratch,
        py: Python<'_>,
    ) -> PyResult<()> {
        let scratch = scratch.of(&self.shared)?;
        let mut receipt = batch.receipt.bind(py).try_borrow_mut()?;
        let receipt = receipt.of(&self.shared)?;
        self.shared.with(|plane| plane.join_scratch(receipt, scratch))
    }

    /// Batches in flight that touch the residency's slot.
    fn in_flight(&self, residency: &mut PyResidency) -> PyResult<u32> {
        let residency = residency.of(&self.shared)?;
        self.shared.with(|plane| plane.in_flight(residency))
    }

    /// Takes a batch's word: its copies and its forward are done, or (`done=False`) failed.
    #[pyo3(signature = (batch, *, done=true))]
    fn settle(&self, batch: &PyBatch, done: bool, py: Python<'_>) -> PyResult<()> {
        let receipt = batch.receipt.bind(py).try_borrow_mut()?.take(&self.shared)?;
        let outcome = if done { Outcome::Done } else { Outcome::Failed };
        self.shared.with(|plane| plane.settle(receipt, outcome))
    }

    /// Empties index and checkpoints. Operations in flight stay valid.
    fn reset(&self) -> PyResult<()> {
        self.shared.with(ControlPlane::reset)
    }

    /// Grows the pool by up to `count` pages and says by how many.
    fn extend(&self, count: u32) -> PyResult<u32> {
        Ok(self.shared.with(|plane| plane.extend(Pages::new(count)))?.get())
    }

    /// Shrinks the pool by its highest page, given all residencies: `(from, None)`, `(from, to)` where
    /// its content has to be copied first, or `Refused`.
    fn retire_top<'py>(
        &self,
        residencies: Vec<Bound<'py, PyResidency>>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut held = Vec::new();
        for residency in &residencies {
            held.push(residency.try_borrow_mut()?);
        }
        let mut inner = Vec::new();
        for residency in &mut held {
            inner.push(residency.of(&self.shared)?);
        }
        let moved = match self.shared.with(|plane| plane.retire_top(&mut inner))? {
            Retire::Retired(page) => (page.raw(), None),
            Retire::Moved { from, to } => (from.raw(), Some(to.raw())),
            Retire::Busy(_) => return Ok(Bound::new(py, PyRefused { reason: "busy" })?.into_any()),
            Retire::Empty => return Ok(Bound::new(py, PyRefused { reason: "empty" })?.into_any()),
        };
        Ok(moved.into_pyobject(py)?.into_any())
    }

    /// Pages that a live request could have now.
    #[getter]
    fn available(&self) -> PyResult<u32> {
        Ok(self.shared.with(|plane| plane.available())?.get())
    }

    /// Units of one image; `None` where state is not copied.
    #[getter]
    fn units_per_checkpoint(&self) -> PyResult<Option<u32>> {
        Ok(self.shared.with(|plane| plane.units_per_checkpoint())?.map(Pages::get))
    }

    /// Bytes that the prefix index holds for its lifetime.
    #[getter]
    fn index_bytes(&self) -> PyResult<u64> {
        Ok(self.shared.with(|plane| plane.index_bytes())?.get())
    }

    /// Where a prefill chunk `(start, end]` has to end, so that a forward ends on a kept boundary.
    #[pyo3(signature = (start, end, prompt, *, demand=None, scope=None))]
    fn chunk_end(
        &self,
        start: u32,
        end: u32,
        prompt: u32,
        demand: Option<u32>,
        scope: Option<&PyScope>,
    ) -> PyResult<u32> {
        if start >= end || end > prompt {
            return Err(value_error(format!(
                "chunk: expected start < end <= prompt, got ({start}, {end}] of {prompt}"
            )));
        }
        let chunk = Chunk {
            start: Tokens::new(start),
            end: Tokens::new(end),
            prompt: Tokens::new(prompt),
            demand: demand.map(Boundary::from_raw),
        };
        let scope = scope.map_or(Scope::EVERY, |scope| scope.scope);
        let placement = self.shared.with(|plane| plane.placement())?;
        Ok(placement.within(scope).chunk_end(&chunk).get())
    }

    /// Why the state after `at` tokens is kept; `None` where it is not. `more` says that another
    /// forward of the request follows.
    #[pyo3(signature = (at, prompt, *, last_kept, demand=None, more=true, scope=None))]
    fn keep(
        &self,
        at: u32,
        prompt: u32,
        last_kept: u32,
        demand: Option<u32>,
        more: bool,
        scope: Option<&PyScope>,
    ) -> PyResult<Option<&'static str>> {
        let progress = Progress {
            at: Tokens::new(at),
            prompt: Tokens::new(prompt),
            demand: demand.map(Boundary::from_raw),
            last_kept: Boundary::from_raw(last_kept),
            ahead: if more { Ahead::Forward } else { Ahead::Nothing },
        };
        let scope = scope.map_or(Scope::EVERY, |scope| scope.scope);
        let placement = self.shared.with(|plane| plane.placement())?;
        Ok(placement.within(scope).keep(&progress).map(reason_name))
    }

    /// Running totals, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let c = self.shared.with(|plane| plane.counters())?;
        dict(
            py,
            &[
                ("filed", c.filed),
                ("kept", c.kept),
                ("no_room", c.no_room),
                ("superseded", c.superseded),
                ("duplicate", c.duplicate),
                ("slot_gone", c.slot_gone),
                ("forgotten", c.forgotten),
                ("unfiled", c.unfiled),
                ("evicted", c.evicted),
                ("orphaned_records", c.orphaned_records),
                ("reset", c.reset),
                ("failed", c.failed),
                ("lost_duplicates", c.lost_duplicates),
                ("orphaned_keys", c.orphaned_keys),
                ("admitted", c.admitted),
                ("demands_recorded", c.demands_recorded),
                ("demands_declined", c.demands_declined),
                ("resets", c.resets),
                ("blocks_duplicate", c.blocks_duplicate),
                ("blocks_collided", c.blocks_collided),
                ("restores_cancelled", c.restores_cancelled),
            ],
        )
    }

    /// The four fates of what placement asked for.
    fn fates<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let f = self.shared.with(|plane| plane.counters())?.fates();
        let fates = [
            ("kept", f.kept),
            ("dropped", f.dropped),
            ("evicted", f.evicted),
            ("orphaned", f.orphaned),
        ];
        dict(py, &fates)
    }

    /// What there is now, by name.
    fn gauges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let g = self.shared.with(|plane| plane.gauges())?;
        let gauges = [
            ("pending", g.pending),
            ("copying", g.copying),
            ("ready", g.ready),
            ("evicting", g.evicting),
            ("queued_restores", g.queued_restores),
            ("pages_total", g.pages_total),
            ("pages_vacant", g.pages_vacant),
            ("pages_cached", g.pages_cached),
            ("pages_held", g.pages_held),
            ("pages_live", g.pages_live),
            ("pages_raw", g.pages_raw),
            ("pages_available", g.pages_available),
            ("slots_free", g.slots_free),
            ("slots_fenced", g.slots_fenced),
            ("blocks_indexed", g.blocks_indexed),
        ];
        dict(py, &gauges.map(|(name, value)| (name, u64::from(value))))
    }

    /// Every record: `(id, key, boundary, state, pins, units)`.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        type Row = (u64, u128, u32, &'static str, u32, Vec<u32>);
        let rows: Vec<Row> = self.shared.with(|plane| {
            let row = |record: statepages_store::RecordView<'_>| {
                let (state, pins) = match record.state {
                    RecordState::Copying => ("COPYING", 0),
                    RecordState::Ready { pins } => ("READY", pins),
                    RecordState::EvictingWriter => ("EVICTING", 0),
                    RecordState::EvictingReaders { pins } => ("EVICTING", pins),
                };
                let units = record.units.iter().map(|page| page.raw()).collect();
                let (key, boundary) = (record.key.raw(), record.boundary.get());
                (record.id.raw(), key, boundary, state, pins, units)
            };
            plane.records().map(row).collect()
        })?;
        rows.into_iter()
            .map(|(id, key, boundary, state, pins, units)| {
                let units = PyArray1::from_vec(py, units);
                (id, key, boundary, state, pins, units).into_pyobject(py)
            })
            .collect()
    }

    /// Keys of every block that a lookup finds, in the order of the pages.
    fn indexed(&self) -> PyResult<Vec<u128>> {
        self.shared.with(|plane| plane.indexed().map(|(key, ..)| key.raw()).collect())
    }

    /// KV events since the last call, and how many were lost after them: `("stored", key, parent,
    /// tokens)`, `("removed", key)`, `("cleared",)`.
    fn events<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Bound<'py, PyTuple>>, u64)> {
        enum Event {
            Stored(u128, Option<u128>, Vec<u32>),
            Removed(u128),
            Cleared,
        }
        let (events, lost) = self.shared.with(|plane| {
            let (mut drain, mut events) = (plane.events(), Vec::new());
            let lost = drain.lost();
            while let Some(event) = drain.next_event() {
                events.push(match event {
                    KvEvent::Stored { key, parent, tokens, .. } => Event::Stored(
                        key.raw(),
                        parent.map(statepages_page::ContentKey::raw),
                        tokens.to_vec(),
                    ),
                    KvEvent::Removed { key } => Event::Removed(key.raw()),
                    KvEvent::Cleared => Event::Cleared,
                });
            }
            (events, lost)
        })?;
        let tuple = |event| match event {
            Event::Stored(key, parent, tokens) => {
                ("stored", key, parent, PyArray1::from_vec(py, tokens)).into_pyobject(py)
            }
            Event::Removed(key) => ("removed", key).into_pyobject(py),
            Event::Cleared => ("cleared",).into_pyobject(py),
        };
        Ok((events.into_iter().map(tuple).collect::<PyResult<_>>()?, lost))
    }

    /// Audits everything in O(n).
    fn check(&self) -> PyResult<()> {
        self.shared.with(|plane| plane.check())
    }
}

impl PyControlPlane {
    fn usable(&self, keys: &PyPromptKeys) -> PyResult<()> {
        if keys.keys.block().get() != self.block_size {
            return Err(value_error(format!(
                "keys: expected blocks of {} tokens, got {}",
                self.block_size,
                keys.keys.block().get()
            )));
        }
        if keys.len() == Tokens::ZERO {
            return Err(value_error("keys: expected at least one token, got none"));
        }
        Ok(())
    }
}

fn key_at(keys: &PyPromptKeys, boundary: Boundary) -> PyResult<statepages_page::ContentKey> {
    keys.keys.key_at(boundary).ok_or_else(|| {
        value_error(format!(
            "boundary: expected one behind a whole block of {} tokens, got {}",
            keys.len(),
            boundary.get()
        ))
    })
}

fn same_length(name: &str, got: usize, expected: usize) -> PyResult<()> {
    if got == expected {
        return Ok(());
    }
    Err(value_error(format!("{name}: expected {expected} entries, got {got}")))
}

fn dict<'py>(py: Python<'py>, fields: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in fields {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

const REASONS: [KeepReason; 5] = [
    KeepReason::Grid,
    KeepReason::Demand,
    KeepReason::Anchor,
    KeepReason::PromptEnd,
    KeepReason::DecodeSpacing,
];

const fn reason_name(reason: KeepReason) -> &'static str {
    match reason {
        KeepReason::Grid => "grid",
        KeepReason::Demand => "demand",
        KeepReason::Anchor => "anchor",
        KeepReason::PromptEnd => "prompt_end",
        KeepReason::DecodeSpacing => "decode_spacing",
    }
}

fn reason_of(name: &str) -> PyResult<KeepReason> {
    REASONS.into_iter().find(|&reason| reason_name(reason) == name).ok_or_else(|| {
        let names = REASONS.map(reason_name).join(", ");
        value_error(format!("reason: expected one of {names}, got {name:?}"))
    })
}

const fn filed_name(filed: Filed) -> &'static str {
    match filed {
        Filed::Pending => "pending",
        Filed::Replaced => "replaced",
        Filed::Lost => "lost",
        Filed::Off => "off",
        Filed::Stale => "stale",
    }
}
