//! The device backend: but for dependent operations, one launch a batch.
//!
//! ```text
//! a small batch: its table is an argument of the kernels
//! copy stream                              [relocate] [copy] ([relocate] [copy] ...) --done-->
//!
//! any other, and every batch under Passing::Upload
//! upload stream   [table] --uploaded--.
//! copy stream                          '-> [relocate] [copy] ([relocate] [copy] ...) --done-->
//! ```
//!
//! # Invariants
//! - Nothing is enqueued before the whole bundle has been checked against the memory.
//! - Nothing waits: the host writes a table that is free, enqueues, and goes on. Receipts are polled.
//! - Resident tables hold addresses of one memory; every call names that memory.
//! - Launches of a batch follow each other on one stream; so do batches.
//!
//! The engine calls, from one thread at a time.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use statepages_copy::{
    Batcher, CopyBackend, CopyError, CopyOrder, CopyPlan, CopyState, CopyTicket, OpChecker, Tickets,
};
use statepages_page::{Bytes, MaintenanceOps, StateLayout};

use crate::compile::{CacheOutcome, Checks, Kernels};
use crate::device::{Allocation, Device, Event, Libraries, Pinned, Stream};
use crate::direct::Direct;
use crate::encode::{self, ARGUMENT_BYTES, Group, RECORD_BYTES, Records, TableShape};
use crate::graph::{CopyGraph, Replay};
use crate::memory::DeviceMemory;
use crate::pattern::argument;
use crate::staging::{Staged, Staging, StagingLimits};
use crate::tables::Tables;
use crate::{DeviceError, GraphShape, KernelShape};

/// How operations reach the kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passing {
    /// As kernel arguments where they are few enough; else uploaded.
    Arguments,
    /// Uploaded, however few they are.
    Upload,
}

/// How a backend is built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceOptions {
    /// Shape of the kernels.
    pub shape: KernelShape,
    /// Who checks indices.
    pub checks: Checks,
    /// Tables taken at the start.
    pub staging: StagingLimits,
    /// How operations reach the kernels.
    pub passing: Passing,
    /// Folder of compiled kernels.
    pub cache: Option<PathBuf>,
    /// [`crate::KERNEL_SOURCE`], or a variant of it that is being measured.
    pub source: Cow<'static, str>,
}

/// Executes batches on a [`DeviceMemory`].
pub struct DeviceBackend {
    layout: StateLayout,
    checker: OpChecker,
    batcher: Batcher,
    tickets: Tickets,
    staging: Staging,
    passing: Passing,
    flights: VecDeque<Flight>,
    groups: Vec<Group>,
    order: CopyOrder,
    resident: Resident,
    uploads: Stream,
    stream: Arc<Stream>,
    device: Device,
}

/// A batch between submission and receipt. Flights end in order: all are on one stream.
struct Flight {
    ticket: CopyTicket,
    done: Arc<Event>,
    /// The batch's table; none where a graph keeps its own.
    staged: Option<Staged>,
}

/// What every launch uses: kernels, tables, and the memory whose addresses these hold.
pub(crate) struct Resident {
    kernels: Kernels,
    /// Where the layout allows it, this instead of tiles and rings.
    direct: Option<Direct>,
    tiles: Allocation,
    tile_count: u32,
    rings: Allocation,
    slot_tiles: Allocation,
    slot_tile_count: u32,
    limits: Allocation,
    fault: Allocation,
    identity: Arc<()>,
    units_per_image: u32,
}

impl DeviceBackend {
    /// A backend with a stream of its own. What the caller does to the memory elsewhere waits for
    /// receipts: [`CopyOrder::Unordered`].
    pub fn new(
        libraries: &Libraries,
        layout: StateLayout,
        memory: &DeviceMemory,
        options: &DeviceOptions,
    ) -> Result<Self, DeviceError> {
        let stream = memory.device().stream()?;
        Self::build(libraries, layout, memory, options, (stream, CopyOrder::Unordered))
    }

    /// A backend on an engine's stream. Batches take effect in the order of submission and before
    /// whatever is enqueued on that stream afterwards: [`CopyOrder::Ordered`], for an engine that
    /// touches the memory from that stream alone.
    pub fn on_stream(
        libraries: &Libraries,
        layout: StateLayout,
        memory: &DeviceMemory,
        options: &DeviceOptions,
        stream: Stream,
    ) -> Result<Self, DeviceError> {
        Self::build(libraries, layout, memory, options, (stream, CopyOrder::Ordered))
    }

    fn build(
        libraries: &Libraries,
        layout: StateLayout,
        memory: &DeviceMemory,
        options: &DeviceOptions,
        (stream, order): (Stream, CopyOrder),
    ) -> Result<Self, DeviceError> {
        let device = stream.device().clone();
        let kernels = Kernels::new(&device, libraries, options)?;
        let uploads = device.stream()?;
        let resident = Resident::new(&device, &uploads, &layout, memory, kernels)?;
        let table = TableShape {
            relocations: options.staging.images,
            images: options.staging.images,
            units_per_image: resident.units_per_image,
        };
        Ok(Self {
            checker: OpChecker::new(&layout),
            batcher: Batcher::new(),
            tickets: Tickets::new(),
            staging: Staging::new(&device, options.staging, table.bytes())?,
            passing: options.passing,
            flights: VecDeque::with_capacity(options.staging.batches as usize),
            groups: Vec::new(),
            layout,
            order,
            resident,
            uploads,
            stream: Arc::new(stream),
            device,
        })
    }

    /// Stores that the next batch may bring without memory being allocated for them. A scheduler
    /// keeps the rest until later; relocations and restores are taken regardless.
    pub fn store_room(&mut self) -> Result<u32, CopyError> {
        self.tickets.sound()?;
        let reaped = self.reap();
        self.tickets.latch(reaped.map_err(CopyError::from))?;
        Ok(self.staging.room())
    }

    /// Tables that were added because none was free or large enough.
    pub fn staging_added(&self) -> u64 {
        self.staging.added()
    }

    /// What became of the compiled kernels' cache.
    pub fn cache(&self) -> &CacheOutcome {
        self.resident.kernels.cache()
    }

    /// The kernels, for a [`crate::Probe`].
    pub fn kernels(&self) -> &Kernels {
        &self.resident.kernels
    }

    /// The stream of the copies.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Captures a graph that copies any batch within `shape`. Nothing may be enqueued on the stream
    /// by others meanwhile.
    pub fn capture(&mut self, shape: GraphShape) -> Result<CopyGraph, CopyError> {
        self.tickets.sound()?;
        let captured = CopyGraph::capture(&self.device, &self.stream, &self.resident, shape);
        self.tickets.latch(captured.map_err(CopyError::from))
    }

    /// Runs a captured graph on a batch.
    ///
    /// # Panics
    /// For another backend's graph, or a memory other than this backend's.
    pub fn replay(
        &mut self,
        graph: &mut CopyGraph,
        memory: &mut DeviceMemory,
        ops: &MaintenanceOps,
    ) -> Result<Replay, CopyError> {
        self.check(memory, ops)?;
        assert!(graph.is_of(&self.stream), "a graph of this backend");
        let reaped = self.reap();
        self.tickets.latch(reaped.map_err(CopyError::from))?;
        if self.flights.iter().any(|flight| Arc::ptr_eq(&flight.done, graph.done())) {
            return Ok(Replay::Busy);
        }
        let launches = self.batcher.place(ops, memory.slots());
        let launched = graph.launch(launches, ops);
        let fits = self.tickets.latch(launched.map_err(CopyError::from))?;
        if fits.is_err() {
            return Ok(Replay::TooLarge);
        }
        let ticket = self.tickets.issue();
        self.flights.push_back(Flight { ticket, done: graph.done().clone(), staged: None });
        Ok(Replay::Launched(ticket))
    }

    fn check(&mut self, memory: &DeviceMemory, ops: &MaintenanceOps) -> Result<(), CopyError> {
        self.tickets.sound()?;
        let same = Arc::ptr_eq(memory.identity(), &self.resident.identity);
        assert!(same, "the memory that this backend was built for");
        let checked = self.checker.check(ops, memory.pages(), memory.slots());
        self.tickets.latch(checked.map_err(CopyError::from))
    }

    /// Ends the flights whose event is past.
    fn reap(&mut self) -> Result<(), DeviceError> {
        while let Some(flight) = self.flights.front() {
            if !flight.done.is_past()? {
                break;
            }
            let flight = self.flights.pop_front().expect("there is a front");
            let Some(mut staged) = flight.staged else { continue };
            let faults = match self.resident.kernels.checks {
                Checks::Host => 0,
                // SAFETY: the event behind every copy of this table is past.
                Checks::HostAndKernel => unsafe { staged.faults() },
            };
            self.staging.give(staged);
            if faults > 0 {
                return Err(DeviceError::WrongIndices { count: faults });
            }
        }
        Ok(())
    }

    /// Enqueues a checked batch.
    fn enqueue(&mut self, ops: &MaintenanceOps, slots: u32) -> Result<CopyTicket, DeviceError> {
        self.reap()?;
        if ops.is_empty() {
            return Ok(self.tickets.issue());
        }
        let shape = TableShape {
            relocations: ops.relocations.len() as u32,
            images: (ops.stores.len() + ops.restores.len()) as u32,
            units_per_image: self.resident.units_per_image,
        };
        let mut staged = self.staging.take(&self.device, shape.bytes())?;
        // SAFETY: a table is free only once every copy of it is past.
        let host = unsafe { staged.host.bytes_mut() };
        encode::packed(self.batcher.place(ops, slots), ops, shape, host, &mut self.groups);
        match self.launch(&staged, shape) {
            Ok(()) => {
                let ticket = self.tickets.issue();
                let done = staged.done.clone();
                self.flights.push_back(Flight { ticket, done, staged: Some(staged) });
                Ok(ticket)
            }
            Err(error) => {
                self.staging.give_torn(staged);
                Err(error)
            }
        }
    }

    fn launch(&self, staged: &Staged, shape: TableShape) -> Result<(), DeviceError> {
        let argued = self.passing == Passing::Arguments && shape.bytes() <= ARGUMENT_BYTES;
        let table = if argued {
            Table::Argument(&staged.host)
        } else {
            // SAFETY: the table stays in its flight, or torn, until the device is past this.
            unsafe { self.uploads.upload(&staged.table, &staged.host, shape.bytes()) }?;
            staged.uploaded.record(&self.uploads)?;
            self.stream.wait(&staged.uploaded)?;
            Table::Uploaded(&staged.table)
        };
        for &group in &self.groups {
            // SAFETY: as above; the batch was checked against the memory whose addresses the
            // resident tables hold, and which the caller has lent.
            unsafe { self.resident.launch(&self.stream, table, shape, group) }?;
        }
        if self.resident.kernels.checks == Checks::HostAndKernel {
            let (host, at) = (&staged.host, staged.fault_offset());
            // SAFETY: as above, and the count itself is resident.
            unsafe { self.stream.download_word(host, at, &self.resident.fault) }?;
        }
        staged.done.record(&self.stream)
    }
}

impl CopyBackend for DeviceBackend {
    type Memory = DeviceMemory;

    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn order(&self) -> CopyOrder {
        self.order
    }

    fn submit(
        &mut self,
        memory: &mut DeviceMemory,
        ops: &MaintenanceOps,
    ) -> Result<CopyTicket, CopyError> {
        self.check(memory, ops)?;
        let enqueued = self.enqueue(ops, memory.slots());
        self.tickets.latch(enqueued.map_err(CopyError::from))
    }

    fn poll(&mut self, _: &mut DeviceMemory, ticket: CopyTicket) -> Result<CopyState, CopyError> {
        self.tickets.valid(ticket)?;
        let reaped = self.reap();
        self.tickets.latch(reaped.map_err(CopyError::from))?;
        let in_flight = self.flights.iter().any(|flight| flight.ticket == ticket);
        Ok(if in_flight { CopyState::Pending } else { CopyState::Done })
    }

    /// Waits for the device first: a table that it may still read is not free. A device that cannot
    /// be waited for stays failed.
    fn reset(&mut self) {
        let waited = self.uploads.synchronize().and_then(|()| self.stream.synchronize());
        if waited.is_ok() && self.resident.clear_faults(&self.uploads).is_ok() {
            for flight in self.flights.drain(..) {
                if let Some(staged) = flight.staged {
                    self.staging.give(staged);
                }
            }
            self.staging.settle();
            self.tickets.reset();
        }
    }
}

impl Drop for DeviceBackend {
    fn drop(&mut self) {
        // Tables and kernels go next. A device that fails to synchronise has stopped using them.
        let waited = self.uploads.synchronize().and_then(|()| self.stream.synchronize());
        drop(waited);
    }
}

impl Resident {
    fn new(
        device: &Device,
        stream: &Stream,
        layout: &StateLayout,
        memory: &DeviceMemory,
        kernels: Kernels,
    ) -> Result<Self, DeviceError> {
        let plan = CopyPlan::new(layout);
        let places = (&*memory.region_places(), &*memory.plane_places());
        let tables = Tables::new(layout, &plan, places, kernels.shape);
        let upload = |bytes: &[u8]| {
            let table = device.allocate(Bytes::new(bytes.len().max(16) as u64))?;
            table.write(stream, 0, bytes)?;
            Ok::<_, DeviceError>(table)
        };
        let units_per_image = plan.units().get();
        let limits = [memory.slots(), memory.pages().get(), units_per_image, 0];
        let limits: Vec<u8> = limits.iter().flat_map(|limit| limit.to_le_bytes()).collect();
        Ok(Self {
            direct: Direct::new(layout, places, kernels.shape),
            tiles: upload(&tables.tiles)?,
            tile_count: tables.tile_count,
            rings: upload(&tables.rings)?,
            slot_tiles: upload(&tables.slot_tiles)?,
            slot_tile_count: tables.slot_tile_count,
            limits: upload(&limits)?,
            fault: upload(&[0; 16])?,
            identity: memory.identity().clone(),
            units_per_image,
            kernels,
        })
    }

    fn clear_faults(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.fault.write(stream, 0, &[0; 16])
    }

    pub(crate) fn units_per_image(&self) -> u32 {
        self.units_per_image
    }

    /// Enqueues the kernels of one launch.
    ///
    /// # Safety
    /// The records of `table` hold indices that were checked, or will when the kernels run; memory
    /// and an uploaded table outlive that.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        table: Table<'_>,
        shape: TableShape,
        group: Group,
    ) -> Result<(), DeviceError> {
        for records in chunks(group.relocations) {
            // SAFETY: as the caller says.
            unsafe { self.relocate(stream, table, records) }?;
        }
        for records in chunks(group.images) {
            match &self.direct {
                // SAFETY: as the caller says.
                Some(direct) => unsafe { self.copy_direct(stream, table, shape, records, direct) },
                // SAFETY: as the caller says.
                None => unsafe { self.copy(stream, table, shape, records) },
            }?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Resident::launch`].
    unsafe fn relocate(
        &self,
        stream: &Stream,
        table: Table<'_>,
        Records { first, count }: Records,
    ) -> Result<(), DeviceError> {
        let (grid, threads) = ((self.slot_tile_count, count, 1), self.kernels.shape.threads());
        let (mut limits, mut fault) = (self.limits.address(), self.fault.address());
        let mut tiles = self.slot_tiles.address();
        let at = RECORD_BYTES * first as usize;
        match table {
            Table::Uploaded(table) => {
                let mut ops = table.address() + at as u64;
                let mut arguments = [
                    argument(&mut tiles),
                    argument(&mut ops),
                    argument(&mut limits),
                    argument(&mut fault),
                ];
                // SAFETY: the kernel's arguments; the rest as the caller says.
                unsafe { stream.launch(&self.kernels.relocate, grid, threads, &mut arguments) }
            }
            Table::Argument(host) => {
                let mut ops = word(at);
                let mut arguments = [
                    argument(&mut tiles),
                    argument(&mut limits),
                    argument(&mut fault),
                    argument(&mut ops),
                    host.start(),
                ];
                let kernel = &self.kernels.relocate_argued;
                // SAFETY: the kernel's arguments, the last one `ARGUMENT_BYTES` of staged memory; the
                // rest as the caller says.
                unsafe { stream.launch(kernel, grid, threads, &mut arguments) }
            }
        }
    }

    /// # Safety
    /// As for [`Resident::launch`].
    unsafe fn copy(
        &self,
        stream: &Stream,
        table: Table<'_>,
        shape: TableShape,
        Records { first, count }: Records,
    ) -> Result<(), DeviceError> {
        let (grid, threads) = ((self.tile_count, count, 1), self.kernels.shape.threads());
        let (mut limits, mut fault) = (self.limits.address(), self.fault.address());
        let (mut tiles, mut rings) = (self.tiles.address(), self.rings.address());
        let at = shape.images_offset() + RECORD_BYTES * first as usize;
        match table {
            Table::Uploaded(table) => {
                let mut ops = table.address() + at as u64;
                let mut units = table.address() + shape.units_offset() as u64;
                let mut arguments = [
                    argument(&mut tiles),
                    argument(&mut rings),
                    argument(&mut ops),
                    argument(&mut units),
                    argument(&mut limits),
                    argument(&mut fault),
                ];
                // SAFETY: the kernel's arguments; the rest as the caller says.
                unsafe { stream.launch(&self.kernels.copy, grid, threads, &mut arguments) }
            }
            Table::Argument(host) => {
                let (mut ops, mut units) = (word(at), word(shape.units_offset()));
                let mut arguments = [
                    argument(&mut tiles),
                    argument(&mut rings),
                    argument(&mut limits),
                    argument(&mut fault),
                    argument(&mut ops),
                    argument(&mut units),
                    host.start(),
                ];
                let kernel = &self.kernels.copy_argued;
                // SAFETY: as for relocations.
                unsafe { stream.launch(kernel, grid, threads, &mut arguments) }
            }
        }
    }

    /// # Safety
    /// As for [`Resident::launch`].
    unsafe fn copy_direct(
        &self,
        stream: &Stream,
        table: Table<'_>,
        shape: TableShape,
        Records { first, count }: Records,
        direct: &Direct,
    ) -> Result<(), DeviceError> {
        let grid = (direct.tiles, direct.units, count);
        let threads = self.kernels.shape.threads();
        let (mut limits, mut fault) = (self.limits.address(), self.fault.address());
        let at = shape.images_offset() + RECORD_BYTES * first as usize;
        let units_at = shape.units_offset() + 4 * first as usize * shape.units_per_image as usize;
        match table {
            Table::Uploaded(table) => {
                let mut ops = table.address() + at as u64;
                let mut units = table.address() + units_at as u64;
                let mut arguments = [
                    argument(&mut ops),
                    argument(&mut units),
                    argument(&mut limits),
                    argument(&mut fault),
                    direct.record(),
                ];
                // SAFETY: the kernel's arguments, the last one a whole record; the rest as the caller
                // says.
                unsafe { stream.launch(&self.kernels.direct, grid, threads, &mut arguments) }
            }
            Table::Argument(host) => {
                let (mut ops, mut units) = (word(at), word(units_at));
                let mut arguments = [
                    argument(&mut limits),
                    argument(&mut fault),
                    argument(&mut ops),
                    argument(&mut units),
                    direct.record(),
                    host.start(),
                ];
                let kernel = &self.kernels.direct_argued;
                // SAFETY: as above, and as for relocations.
                unsafe { stream.launch(kernel, grid, threads, &mut arguments) }
            }
        }
    }
}

/// Where the kernels of a launch find their records.
#[derive(Clone, Copy)]
pub(crate) enum Table<'a> {
    /// In device memory.
    Uploaded(&'a Allocation),
    /// In a staged table's host memory, which the driver copies when it takes the launch.
    Argument(&'a Pinned),
}

/// A table's byte, counted in words.
fn word(byte: usize) -> u32 {
    byte as u32 / 4
}

/// Rows of blocks that one launch may have.
const ROWS_MAX: u32 = 65_535;

fn chunks(records: Records) -> impl Iterator<Item = Records> {
    (0..records.count).step_by(ROWS_MAX as usize).map(move |done| Records {
        first: records.first + done,
        count: ROWS_MAX.min(records.count - done),
    })
}
