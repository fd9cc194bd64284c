//! Pages and slots on a device: plain allocations, or an engine's own tensors by address.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use statepages_page::{Bytes, MOVE_BYTES, PageId, Pages, SlotId, StateLayout};

use crate::device::{Allocation, Device, Stream};
use crate::tables::Place;
use crate::{DeviceError, pattern};

/// A buffer of equal items that somebody else allocated: item `i` at `address + i * stride`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForeignBuffer {
    /// Address of item 0.
    pub address: u64,
    /// Bytes from one item to the next; at least the bytes of an item.
    pub stride: Bytes,
    /// Bytes from `address` to the end of the allocation.
    pub bytes: Bytes,
}

/// One buffer of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffer {
    /// A region of the pages.
    Region(usize),
    /// A plane of the slots.
    Plane(usize),
}

/// Memory that cannot hold the pages and slots it was given for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device cannot give it.
    Device(DeviceError),
    /// More or fewer buffers than the layout has.
    BufferCount {
        /// `page regions` or `slot planes`.
        what: &'static str,
        /// Buffers of the layout.
        expected: usize,
        /// Buffers given.
        got: usize,
    },
    /// A buffer whose last item would leave its allocation.
    TooSmall {
        /// Which.
        buffer: Buffer,
        /// Bytes that its items need.
        expected: Bytes,
        /// Bytes of the allocation from its address on.
        got: Bytes,
    },
    /// Items that would overlap.
    Stride {
        /// Which.
        buffer: Buffer,
        /// Bytes of an item.
        expected: Bytes,
        /// The stride.
        got: Bytes,
    },
    /// An address or stride that is no multiple of [`MOVE_BYTES`].
    Unaligned {
        /// Which.
        buffer: Buffer,
        /// `address` or `stride`.
        what: &'static str,
        /// Its value.
        got: u64,
    },
    /// Two buffers at one address.
    SameAddress {
        /// The first.
        first: Buffer,
        /// The second.
        second: Buffer,
    },
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::BufferCount { what, expected, got } => {
                write!(f, "{what}: expected {expected} buffers, got {got}")
            }
            Self::TooSmall { buffer, expected, got } => {
                write!(f, "size of {buffer:?}: expected at least {expected} bytes, got {got}")
            }
            Self::Stride { buffer, expected, got } => {
                write!(f, "stride of {buffer:?}: expected at least {expected} bytes, got {got}")
            }
            Self::Unaligned { buffer, what, got } => {
                write!(f, "{what} of {buffer:?}: expected a multiple of {MOVE_BYTES}, got {got}")
            }
            Self::SameAddress { first, second } => {
                write!(f, "address of {second:?}: expected one of its own, got that of {first:?}")
            }
        }
    }
}

// Its text holds that of its cause; a source beside it would be printed a second time.
impl std::error::Error for MemoryError {}

impl From<DeviceError> for MemoryError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// A buffer and the bytes of its items.
#[derive(Clone, Copy)]
struct Items {
    place: Place,
    len: u64,
}

/// The device's pages and slots.
pub struct DeviceMemory {
    device: Device,
    regions: Vec<Items>,
    planes: Vec<Items>,
    pages: Pages,
    slots: u32,
    /// Tells this memory from every other.
    identity: Arc<()>,
    /// Freed with the memory; empty where the buffers are foreign.
    _owned: Vec<Allocation>,
}

impl DeviceMemory {
    /// Takes memory for `pages` pages and `slots` slots. Its content is undefined.
    pub fn allocate(
        device: &Device,
        layout: &StateLayout,
        pages: Pages,
        slots: u32,
    ) -> Result<Self, MemoryError> {
        let mut owned = Vec::new();
        let mut take = |len: Bytes, items: u32| {
            let bytes = len.get().checked_mul(u64::from(items));
            let bytes = bytes.ok_or(DeviceError::TooLarge { item: len, items })?;
            let taken = device.allocate(Bytes::new(bytes.max(MOVE_BYTES)))?;
            let place = Place { address: taken.address(), stride: len.get() };
            owned.push(taken);
            Ok::<_, DeviceError>(Items { place, len: len.get() })
        };
        let regions = layout.page.regions().iter().map(|region| take(region.len, pages.get()));
        let regions = regions.collect::<Result<_, _>>()?;
        let planes = layout.slot.planes().iter().map(|plane| take(plane.len, slots));
        let planes = planes.collect::<Result<_, _>>()?;
        let (device, identity) = (device.clone(), Arc::new(()));
        Ok(Self { device, regions, planes, pages, slots, identity, _owned: owned })
    }

    /// Wraps an engine's tensors. Nothing is freed by dropping the result.
    ///
    /// # Safety
    /// From every `address`, `bytes` bytes are memory of this device, and stay so until every backend
    /// of this memory is dropped.
    pub unsafe fn foreign(
        device: &Device,
        layout: &StateLayout,
        (pages, regions): (Pages, &[ForeignBuffer]),
        (slots, planes): (u32, &[ForeignBuffer]),
    ) -> Result<Self, MemoryError> {
        let region_lens: Vec<Bytes> = layout.page.regions().iter().map(|r| r.len).collect();
        let plane_lens: Vec<Bytes> = layout.slot.planes().iter().map(|p| p.len).collect();
        let regions = checked(Buffer::Region, "page regions", &region_lens, regions, pages.get())?;
        let planes = checked(Buffer::Plane, "slot planes", &plane_lens, planes, slots)?;
        let named = (0..regions.len()).map(Buffer::Region);
        let named = named.chain((0..planes.len()).map(Buffer::Plane));
        let mut seen: Vec<(u64, Buffer)> = Vec::new();
        for (second, items) in named.zip(regions.iter().chain(&planes)) {
            let address = items.place.address;
            if let Some(&(_, first)) = seen.iter().find(|(other, _)| *other == address) {
                return Err(MemoryError::SameAddress { first, second });
            }
            seen.push((address, second));
        }
        let (device, identity) = (device.clone(), Arc::new(()));
        Ok(Self { device, regions, planes, pages, slots, identity, _owned: Vec::new() })
    }

    /// Number of pages.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a page in one region, by way of the host; waits.
    ///
    /// # Panics
    /// Where the region or the page does not exist.
    pub fn read_page(
        &self,
        stream: &Stream,
        region: usize,
        page: PageId,
    ) -> Result<Vec<u8>, DeviceError> {
        self.read(stream, Buffer::Region(region), page.raw())
    }

    /// Bytes of a slot in one plane, by way of the host; waits.
    ///
    /// # Panics
    /// Where the plane or the slot does not exist.
    pub fn read_slot(
        &self,
        stream: &Stream,
        plane: usize,
        slot: SlotId,
    ) -> Result<Vec<u8>, DeviceError> {
        self.read(stream, Buffer::Plane(plane), slot.raw())
    }

    /// Bytes of one item; waits.
    ///
    /// # Panics
    /// Where the buffer or the item does not exist.
    pub fn read(&self, stream: &Stream, buffer: Buffer, item: u32) -> Result<Vec<u8>, DeviceError> {
        let (address, len) = self.item(buffer, item);
        let mut bytes = vec![0u8; len];
        self.device.call("copy to the host", |driver| {
            // SAFETY: the item lies in its buffer; the bytes are ours until the wait below ends.
            unsafe {
                (driver.copy_to_host)(
                    bytes.as_mut_ptr().cast::<c_void>(),
                    address,
                    len,
                    stream.handle(),
                )
            }
        })?;
        stream.synchronize()?;
        Ok(bytes)
    }

    /// Writes one item; waits.
    ///
    /// # Panics
    /// Where the buffer or the item does not exist, or `bytes` is not as long as an item.
    pub fn write(
        &mut self,
        stream: &Stream,
        buffer: Buffer,
        item: u32,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let (address, len) = self.item(buffer, item);
        assert_eq!(bytes.len(), len, "bytes of an item of {buffer:?}");
        self.device.call("copy to the device", |driver| {
            // SAFETY: the item lies in its buffer; the borrow outlives the wait below.
            unsafe {
                (driver.copy_to_device)(
                    address,
                    bytes.as_ptr().cast::<c_void>(),
                    len,
                    stream.handle(),
                )
            }
        })?;
        stream.synchronize()
    }

    fn item(&self, buffer: Buffer, item: u32) -> (u64, usize) {
        assert!(item < self.items(buffer), "{buffer:?} has no item {item}");
        let items = self.buffer(buffer);
        (items.place.address + u64::from(item) * items.place.stride, items.len as usize)
    }

    /// Number of items of a buffer.
    pub fn items(&self, buffer: Buffer) -> u32 {
        match buffer {
            Buffer::Region(_) => self.pages.get(),
            Buffer::Plane(_) => self.slots,
        }
    }

    /// Bytes of an item of a buffer.
    ///
    /// # Panics
    /// Where the buffer does not exist.
    pub fn item_bytes(&self, buffer: Buffer) -> Bytes {
        Bytes::new(self.buffer(buffer).len)
    }

    /// Every buffer.
    pub fn buffers(&self) -> impl Iterator<Item = Buffer> {
        let planes = (0..self.planes.len()).map(Buffer::Plane);
        (0..self.regions.len()).map(Buffer::Region).chain(planes)
    }

    fn buffer(&self, buffer: Buffer) -> Items {
        match buffer {
            Buffer::Region(index) => self.regions[index],
            Buffer::Plane(index) => self.planes[index],
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn identity(&self) -> &Arc<()> {
        &self.identity
    }

    pub(crate) fn place(&self, buffer: Buffer) -> Place {
        self.buffer(buffer).place
    }

    pub(crate) fn region_places(&self) -> Vec<Place> {
        self.regions.iter().map(|items| items.place).collect()
    }

    pub(crate) fn plane_places(&self) -> Vec<Place> {
        self.planes.iter().map(|items| items.place).collect()
    }
}

impl Buffer {
    /// A number that no other buffer of a memory has, for [`pattern::key`].
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Region(index) => 2 * index as u64,
            Self::Plane(index) => 2 * index as u64 + 1,
        }
    }

    /// Key of the pattern with which `seed` fills this buffer.
    pub fn key(self, seed: u64) -> u64 {
        pattern::key(seed, self.number())
    }
}

fn checked(
    buffer: impl Fn(usize) -> Buffer,
    what: &'static str,
    lens: &[Bytes],
    given: &[ForeignBuffer],
    items: u32,
) -> Result<Vec<Items>, MemoryError> {
    if lens.len() != given.len() {
        let (expected, got) = (lens.len(), given.len());
        return Err(MemoryError::BufferCount { what, expected, got });
    }
    let mut checked = Vec::with_capacity(given.len());
    for (index, (&len, &ForeignBuffer { address, stride, bytes })) in
        lens.iter().zip(given).enumerate()
    {
        let buffer = buffer(index);
        if stride < len {
            return Err(MemoryError::Stride { buffer, expected: len, got: stride });
        }
        for (what, got) in [("address", address), ("stride", stride.get())] {
            if got % MOVE_BYTES != 0 {
                return Err(MemoryError::Unaligned { buffer, what, got });
            }
        }
        let before = u64::from(items.saturating_sub(1)).checked_mul(stride.get());
        let needed = before.and_then(|before| before.checked_add(len.get()));
        let needed = needed.filter(|&needed| address.checked_add(needed).is_some());
        let needed = needed.ok_or(DeviceError::TooLarge { item: stride, items })?;
        if items > 0 && needed > bytes.get() {
            let expected = Bytes::new(needed);
            return Err(MemoryError::TooSmall { buffer, expected, got: bytes });
        }
        checked.push(Items { place: Place { address, stride: stride.get() }, len: len.get() });
    }
    Ok(checked)
}
