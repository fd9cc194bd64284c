//! Pages and slots in arrays that an engine lends: host memory by address, device memory for
//! `statepages-cuda`.
//!
//! Invariants:
//! - a buffer holds as many items as the memory says it has, each as long as the layout wants, and no
//!   two buffers overlap: checked when the memory is made, and lent arrays cannot shrink;
//! - every access is checked against these lengths; bytes are copied, and no reference to lent bytes
//!   is ever made, because an engine may look at them meanwhile.
#![expect(unsafe_code, reason = "memory lent by address")]

use std::ffi::c_void;
use std::ops::Range;

use pyo3::prelude::*;
use statepages_copy::{HostMemory, PagePlace, SlotPlace};
use statepages_cuda::{Device, DeviceMemory, ForeignBuffer, Stream};
use statepages_page::{Bytes, MOVE_BYTES, Pages, SlotId, StateLayout};

use crate::dlpack::{Lent, Place};
use crate::native::error::{DeviceFailure, MemoryRefused};

/// The arrays of a layout's page regions and slot planes.
pub(crate) struct LentMemory {
    regions: Vec<LentBuffer>,
    planes: Vec<LentBuffer>,
    pages: Pages,
    slots: u32,
    place: Place,
}

struct LentBuffer {
    lent: Lent,
    /// Bytes of an item.
    len: u64,
    /// Bytes from one item to the next.
    stride: u64,
}

impl LentMemory {
    /// Takes one array per page region and one per slot plane. The first dimension counts pages, or
    /// slots; a row has at least the bytes of the layout.
    pub(crate) fn new(
        layout: &StateLayout,
        regions: &[Bound<'_, PyAny>],
        planes: &[Bound<'_, PyAny>],
    ) -> PyResult<Self> {
        let wanted = layout.page.regions().iter().map(|r| (r.name.as_str(), r.len)).collect();
        let (regions, pages) = lend("regions", wanted, regions)?;
        let wanted = layout.slot.planes().iter().map(|p| (p.name.as_str(), p.len)).collect();
        let (planes, slots) = lend("planes", wanted, planes)?;
        let place = regions[0].1.lent.place;
        let mut seen: Vec<(&str, Range<u64>)> = Vec::new();
        for (name, buffer) in regions.iter().chain(&planes) {
            let lent = &buffer.lent;
            if lent.place != place {
                return Err(MemoryRefused::new_err(format!(
                    "{name}: expected an array on {place:?} as the first, got one on {:?}",
                    lent.place
                )));
            }
            let range = lent.address..lent.address + lent.bytes;
            let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
            if let Some((other, _)) = seen.iter().find(|(_, other)| overlaps(other)) {
                return Err(MemoryRefused::new_err(format!(
                    "{name}: expected bytes of its own, got some of {other}"
                )));
            }
            seen.push((name, range));
        }
        let regions: Vec<LentBuffer> = regions.into_iter().map(|(_, buffer)| buffer).collect();
        let planes = planes.into_iter().map(|(_, buffer)| buffer).collect();
        Ok(Self { regions, planes, pages: Pages::new(pages), slots, place })
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The same arrays as a device's memory.
    pub(crate) fn on_device(
        &self,
        device: &Device,
        layout: &StateLayout,
    ) -> PyResult<DeviceMemory> {
        let foreign = |buffers: &[LentBuffer]| -> Vec<ForeignBuffer> {
            let foreign = buffers.iter().map(|buffer| ForeignBuffer {
                address: buffer.lent.address,
                stride: Bytes::new(buffer.stride),
                bytes: Bytes::new(buffer.lent.bytes),
            });
            foreign.collect()
        };
        let (regions, planes) = (foreign(&self.regions), foreign(&self.planes));
        // SAFETY: the arrays lie on this device, are as long as they say, and live as long as `self`,
        // which the backend is kept with.
        let memory = unsafe {
            DeviceMemory::foreign(device, layout, (self.pages, &regions), (self.slots, &planes))
        };
        memory.map_err(|error| MemoryRefused::new_err(error.to_string()))
    }
}

/// A stream that the engine made, such as torch's current one.
pub(crate) fn engine_stream(device: &Device, handle: u64) -> PyResult<Stream> {
    let raw = usize::try_from(handle)
        .map_err(|_| DeviceFailure::new_err(format!("stream: expected a handle, got {handle}")))?;
    // SAFETY: the engine states that the handle is a stream of this device and lives as long as the
    // backend; 0 is the default stream.
    Ok(unsafe { Stream::of_engine(device, raw as *mut c_void) })
}

/// Lends one kind of buffer, and says how many items all of them hold.
fn lend(
    what: &str,
    wanted: Vec<(&str, Bytes)>,
    arrays: &[Bound<'_, PyAny>],
) -> PyResult<(Vec<(String, LentBuffer)>, u32)> {
    if wanted.len() != arrays.len() {
        let message = format!("{what}: expected {} arrays, got {}", wanted.len(), arrays.len());
        return Err(MemoryRefused::new_err(message));
    }
    let mut lent = Vec::new();
    let mut items = None;
    for (index, ((name, len), array)) in wanted.iter().zip(arrays).enumerate() {
        let name = format!("{what}[{index}] ({name})");
        let refused = |what: String| MemoryRefused::new_err(format!("{name}: {what}"));
        let buffer = Lent::of(array, &name)?;
        let count = u32::try_from(buffer.items)
            .ok()
            .filter(|&count| count > 0)
            .ok_or_else(|| refused(format!("expected 1 to 2^32 items, got {}", buffer.items)))?;
        let wanted = *items.get_or_insert(count);
        if count != wanted {
            return Err(refused(format!(
                "expected {wanted} items as the first array, got {count}"
            )));
        }
        let stride = buffer.bytes / buffer.items;
        if stride < len.get() {
            let expected =
                format!("expected rows of at least {len} bytes, got {stride}: too small");
            return Err(refused(expected));
        }
        for (what, value) in [("an address", buffer.address), ("rows", stride)] {
            if !value.is_multiple_of(MOVE_BYTES) {
                let message = format!("expected {what} of a multiple of {MOVE_BYTES}, got {value}");
                return Err(refused(message));
            }
        }
        lent.push((name, LentBuffer { lent: buffer, len: len.get(), stride }));
    }
    let items = items.ok_or_else(|| MemoryRefused::new_err(format!("{what}: expected arrays")))?;
    Ok((lent, items))
}

impl LentBuffer {
    /// Address of a range of an item.
    ///
    /// # Panics
    /// Where the range leaves the item, or the item the buffer.
    fn at(&self, item: usize, offset: usize, bytes: usize) -> *mut u8 {
        let (item, offset, bytes) = (item as u64, offset as u64, bytes as u64);
        assert!(item < self.lent.items && offset + bytes <= self.len, "a range within its item");
        (self.lent.address + item * self.stride + offset) as *mut u8
    }
}

impl HostMemory for LentMemory {
    fn pages(&self) -> Pages {
        self.pages
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn scatter(&mut self, from: SlotPlace, to: PagePlace, bytes: usize) {
        let source = self.planes[from.plane].at(from.slot.index(), from.offset, bytes);
        let target = self.regions[to.region].at(to.page.index(), to.offset, bytes);
        // SAFETY: both ranges were checked, and buffers do not overlap.
        unsafe { source.copy_to_nonoverlapping(target, bytes) };
    }

    fn gather(&mut self, from: PagePlace, to: SlotPlace, bytes: usize) {
        let source = self.regions[from.region].at(from.page.index(), from.offset, bytes);
        let target = self.planes[to.plane].at(to.slot.index(), to.offset, bytes);
        // SAFETY: as above.
        unsafe { source.copy_to_nonoverlapping(target, bytes) };
    }

    fn move_slot(&mut self, from: SlotId, to: SlotId) {
        for plane in &self.planes {
            let bytes = plane.len as usize;
            let (source, target) =
                (plane.at(from.index(), 0, bytes), plane.at(to.index(), 0, bytes));
            // SAFETY: both ranges were checked; a slot may be moved onto itself.
            unsafe { source.copy_to(target, bytes) };
        }
    }
}
