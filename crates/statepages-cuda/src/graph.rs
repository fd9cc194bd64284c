//! A captured graph: upload and launches of any batch within a shape, enqueued by one call.
//!
//! Kernel arguments are fixed; the table that they point at is rewritten before each replay. Records
//! that a batch does not use are idle, and their blocks end at once.
//!
//! ```text
//! Free --launch--> in flight --receipt--> Free
//! ```
//!
//! The backend alone calls; it asks for the receipt before it launches again, since a graph has one
//! table.

use std::sync::Arc;

use statepages_copy::{CopyTicket, Launches};
use statepages_page::MaintenanceOps;

use crate::api::{CAPTURE_THREAD_LOCAL, Handle};
use crate::backend::{Resident, Table};
use crate::device::{Device, Event, Stream};
use crate::encode::{self, Group, Records, TableShape, TooLarge};
use crate::staging::Staged;
use crate::{DeviceError, GraphShape};

/// What became of a batch that was given to a graph.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replay {
    /// It is under way.
    Launched(CopyTicket),
    /// The graph's last batch is still under way; nothing was enqueued.
    Busy,
    /// The graph has no room for it; nothing was enqueued.
    TooLarge,
}

/// A captured graph of one backend.
pub struct CopyGraph {
    graph: Handle,
    executable: Handle,
    staged: Staged,
    shape: GraphShape,
    table: TableShape,
    stream: Arc<Stream>,
    device: Device,
}

impl CopyGraph {
    pub(crate) fn capture(
        device: &Device,
        stream: &Arc<Stream>,
        resident: &Resident,
        shape: GraphShape,
    ) -> Result<Self, DeviceError> {
        let table = TableShape {
            relocations: shape.launches * shape.relocations,
            images: shape.launches * shape.images,
            units_per_image: resident.units_per_image(),
        };
        let staged = Staged::new(device, table.bytes())?;
        device.call("begin a capture", |driver| {
            // SAFETY: the stream lives.
            unsafe { (driver.capture_begin)(stream.handle(), CAPTURE_THREAD_LOCAL) }
        })?;
        let recorded = record(stream, resident, &staged, shape, table);
        let mut made = Self {
            graph: Handle::NONE,
            executable: Handle::NONE,
            staged,
            shape,
            table,
            stream: stream.clone(),
            device: device.clone(),
        };
        // Ended even where recording failed: a stream left in capture is of no more use.
        let ended = device.call("end a capture", |driver| {
            // SAFETY: writes one handle; destroyed with its owner.
            unsafe { (driver.capture_end)(stream.handle(), &raw mut made.graph) }
        });
        recorded.and(ended)?;
        let graph = made.graph;
        device.call("instantiate a graph", |driver| {
            // SAFETY: writes one handle; destroyed with its owner.
            unsafe { (driver.graph_instantiate)(&raw mut made.executable, graph, 0) }
        })?;
        Ok(made)
    }

    /// Writes a checked batch into the table and enqueues the graph.
    pub(crate) fn launch(
        &mut self,
        launches: Launches<'_>,
        ops: &MaintenanceOps,
    ) -> Result<Result<(), TooLarge>, DeviceError> {
        // SAFETY: the backend has the receipt of the last launch.
        let host = unsafe { self.staged.host.bytes_mut() };
        if let Err(large) = encode::fixed(launches, ops, self.shape, self.table, host) {
            return Ok(Err(large));
        }
        self.device.call("launch a graph", |driver| {
            // SAFETY: both live; the table does until the event below, which is waited for before
            // it is written or freed.
            unsafe { (driver.graph_launch)(self.executable, self.stream.handle()) }
        })?;
        self.staged.done.record(&self.stream).map(Ok)
    }

    pub(crate) fn is_of(&self, stream: &Arc<Stream>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }

    pub(crate) fn done(&self) -> &Arc<Event> {
        &self.staged.done
    }
}

fn record(
    stream: &Stream,
    resident: &Resident,
    staged: &Staged,
    shape: GraphShape,
    table: TableShape,
) -> Result<(), DeviceError> {
    // SAFETY: a graph keeps its table until it has come to its end.
    unsafe { stream.upload(&staged.table, &staged.host, table.bytes()) }?;
    for number in 0..shape.launches {
        let group = Group {
            relocations: Records { first: number * shape.relocations, count: shape.relocations },
            images: Records { first: number * shape.images, count: shape.images },
        };
        // SAFETY: as above; what the table holds at a launch was checked, and the memory is lent.
        unsafe { resident.launch(stream, Table::Uploaded(&staged.table), table, group) }?;
    }
    Ok(())
}

impl Drop for CopyGraph {
    fn drop(&mut self) {
        // The table goes next. A device that fails to synchronise has stopped using it.
        let waited = self.stream.synchronize();
        drop(waited);
        for (handle, executable) in [(self.executable, true), (self.graph, false)] {
            if handle == Handle::NONE {
                continue;
            }
            // A failure leaks the graph and has nobody to tell.
            let destroyed = self.device.call("destroy a graph", |driver| {
                if executable {
                    // SAFETY: made once, destroyed once, and not under way.
                    unsafe { (driver.graph_exec_destroy)(handle) }
                } else {
                    // SAFETY: made once, destroyed once.
                    unsafe { (driver.graph_destroy)(handle) }
                }
            });
            drop(destroyed);
        }
    }
}
