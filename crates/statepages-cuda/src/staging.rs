//! Staging: the ring of host and device tables through which operations reach the kernels.
//!
//! ```text
//!          take               submit              receipt
//!  free  --------> Staged  ------------> flight ------------> free
//!                     |                                          ^
//!                     '--- a call failed --> torn --- reset -----'
//! ```
//!
//! # Invariants
//! - A table is written by the host only while it is free or taken: nothing that was enqueued before
//!   reads it. What makes a table free again is the event behind the last kernel that reads it.
//! - Taking never waits. Where no table is free or large enough, one is added, so restores and
//!   relocations always find room. [`Staging::room`] says what comes without: a scheduler that stays
//!   within it keeps its stores until there is.
//!
//! The backend alone calls.

use std::sync::Arc;

use statepages_page::Bytes;

use crate::DeviceError;
use crate::device::{Allocation, Device, Event, Pinned};
use crate::encode::ARGUMENT_BYTES;

/// How much staging is taken at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagingLimits {
    /// Batches that may be in flight.
    pub batches: u32,
    /// Stores and restores of one batch; as many relocations fit beside them.
    pub images: u32,
}

/// Bytes behind a table in which a checked build's fault count comes back.
const FAULT_BYTES: usize = 8;

/// One table and its events.
pub(crate) struct Staged {
    /// At least [`ARGUMENT_BYTES`], so that it can be a kernel's argument.
    pub(crate) host: Pinned,
    pub(crate) table: Allocation,
    /// The table has reached the device.
    pub(crate) uploaded: Event,
    /// The last kernel that reads the table is done.
    pub(crate) done: Arc<Event>,
}

impl Staged {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        let bytes = bytes.max(ARGUMENT_BYTES).next_multiple_of(256);
        Ok(Self {
            host: device.pinned(Bytes::new((bytes + FAULT_BYTES) as u64))?,
            table: device.allocate(Bytes::new(bytes as u64))?,
            uploaded: device.event()?,
            done: Arc::new(device.event()?),
        })
    }

    fn bytes(&self) -> usize {
        self.table.bytes().index()
    }

    /// Where the fault count comes back in the host's memory.
    pub(crate) fn fault_offset(&self) -> usize {
        self.host.size() - FAULT_BYTES
    }

    /// Faults that came back.
    ///
    /// # Safety
    /// No copy from or to the host's memory is under way.
    pub(crate) unsafe fn faults(&mut self) -> u64 {
        let at = self.fault_offset();
        // SAFETY: as the caller says.
        let bytes = unsafe { self.host.bytes_mut() };
        u64::from_le_bytes(bytes[at..].try_into().expect("eight bytes behind the table"))
    }
}

/// The tables that are not in flight.
pub(crate) struct Staging {
    limits: StagingLimits,
    free: Vec<Staged>,
    /// Tables whose use was never wholly enqueued.
    torn: Vec<Staged>,
    added: u64,
}

impl Staging {
    pub(crate) fn new(
        device: &Device,
        limits: StagingLimits,
        bytes: usize,
    ) -> Result<Self, DeviceError> {
        let free = (0..limits.batches).map(|_| Staged::new(device, bytes));
        Ok(Self { limits, free: free.collect::<Result<_, _>>()?, torn: Vec::new(), added: 0 })
    }

    /// Images that the next batch may bring without a table being added.
    pub(crate) fn room(&self) -> u32 {
        if self.free.is_empty() { 0 } else { self.limits.images }
    }

    /// Tables that had to be added so far.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    pub(crate) fn take(&mut self, device: &Device, bytes: usize) -> Result<Staged, DeviceError> {
        // The one given back first has rested longest.
        if let Some(index) = self.free.iter().position(|staged| staged.bytes() >= bytes) {
            return Ok(self.free.remove(index));
        }
        self.added += 1;
        Staged::new(device, bytes)
    }

    /// Takes a table back whose event is past.
    pub(crate) fn give(&mut self, staged: Staged) {
        self.free.push(staged);
    }

    /// Takes a table back that the device may still read.
    pub(crate) fn give_torn(&mut self, staged: Staged) {
        self.torn.push(staged);
    }

    /// Frees torn tables. The device has come to the end of everything enqueued.
    pub(crate) fn settle(&mut self) {
        self.free.append(&mut self.torn);
    }
}
