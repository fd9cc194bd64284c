//! Devices and what is made on them: allocations, streams, events, kernels. Owners free what they
//! made when they are dropped, and keep their device alive.
//!
//! # Rules
//! - Every call into the driver goes through [`Device::call`], which makes the device current first.
//! - Functions that only enqueue are not public: whoever calls them keeps the memory that the
//!   device will read or write alive, and untouched, until an event says that it is done. Public
//!   functions wait.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;

use statepages_page::Bytes;

use crate::DeviceError;
use crate::api::{
    Activate, Api, Driver, EVENT_NO_TIMING, Handle, NOT_READY, STREAM_NON_BLOCKING, Status, Vendor,
};

/// Which libraries to load. Names or paths; the first that can be opened is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Libraries {
    /// Whose names the functions have.
    pub vendor: Vendor,
    /// The driver.
    pub driver: Vec<String>,
    /// The run-time compiler.
    pub compiler: Vec<String>,
}

impl Libraries {
    /// The names under which the vendor installs them.
    pub fn installed(vendor: Vendor) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self { vendor, driver: owned(vendor.drivers()), compiler: owned(vendor.compilers()) }
    }
}

/// One accelerator.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    api: Api,
    number: c_int,
    /// The primary context; none where the vendor has no such thing.
    context: Handle,
    name: String,
    processor: Option<Processor>,
}

/// The processor that code must be compiled for, by compute capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor {
    /// 9 of 9.0.
    pub major: i32,
    /// 0 of 9.0.
    pub minor: i32,
}

const ATTRIBUTE_MAJOR: c_int = 75;
const ATTRIBUTE_MINOR: c_int = 76;

impl Device {
    /// Opens device `ordinal`.
    pub fn open(libraries: &Libraries, ordinal: u32) -> Result<Self, DeviceError> {
        let api = Api::load(libraries.vendor, &libraries.driver)?;
        // SAFETY: flags must be zero.
        api.check("initialise", unsafe { (api.driver.init)(0) })?;
        let mut number = 0;
        // SAFETY: writes one integer.
        let status = unsafe { (api.driver.device_get)(&raw mut number, ordinal as c_int) };
        api.check("find the device", status)?;
        let mut name = [0; 256];
        // SAFETY: writes at most as many bytes as it is told, the last of them zero.
        let status = unsafe { (api.driver.device_name)(name.as_mut_ptr(), 256, number) };
        api.check("name the device", status)?;
        let name = name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
        let name = String::from_utf8(name).unwrap_or_else(|_| "unnamed device".into());
        let (mut context, mut processor) = (Handle::NONE, None);
        if let Activate::Context { retain, attribute, .. } = api.activate {
            let read = |which| {
                let mut value = 0;
                // SAFETY: writes one integer.
                let status = unsafe { attribute(&raw mut value, which, number) };
                api.check("read the compute capability", status).map(|()| value)
            };
            processor =
                Some(Processor { major: read(ATTRIBUTE_MAJOR)?, minor: read(ATTRIBUTE_MINOR)? });
            // SAFETY: writes one handle; released when the device is dropped.
            api.check("retain the context", unsafe { retain(&raw mut context, number) })?;
        }
        Ok(Self { inner: Arc::new(Inner { api, number, context, name, processor }) })
    }

    /// Whose it is.
    pub fn vendor(&self) -> Vendor {
        self.inner.api.vendor
    }

    /// What its driver calls it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Processor to name to the compiler; `None` where the compiler asks the driver itself.
    pub fn processor(&self) -> Option<Processor> {
        self.inner.processor
    }

    /// Free memory.
    pub fn memory_free(&self) -> Result<Bytes, DeviceError> {
        let (mut free, mut total) = (0, 0);
        self.call("read free memory", |driver| {
            // SAFETY: writes two sizes.
            unsafe { (driver.memory_info)(&raw mut free, &raw mut total) }
        })?;
        Ok(Bytes::new(free as u64))
    }

    /// Takes memory, of undefined content.
    pub fn allocate(&self, bytes: Bytes) -> Result<Allocation, DeviceError> {
        let (mut address, size) = (0, bytes.index());
        self.call("allocate memory", |driver| {
            // SAFETY: writes one address; freed when the allocation is dropped.
            unsafe { (driver.allocate)(&raw mut address, size) }
        })?;
        Ok(Allocation { device: self.clone(), address, bytes })
    }

    /// Takes host memory that the device can copy from while the host goes on. Zeroed.
    pub(crate) fn pinned(&self, bytes: Bytes) -> Result<Pinned, DeviceError> {
        let (mut start, size) = (std::ptr::null_mut(), bytes.index());
        self.call("allocate pinned host memory", |driver| {
            // SAFETY: writes one pointer; freed when the owner is dropped.
            unsafe { (driver.host_allocate)(&raw mut start, size, 0) }
        })?;
        // SAFETY: the driver has just given these bytes to us alone.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, size) };
        Ok(Pinned { device: self.clone(), start: Handle(start), size })
    }

    /// Makes a stream that waits for no other.
    pub fn stream(&self) -> Result<Stream, DeviceError> {
        let mut handle = Handle::NONE;
        self.call("create a stream", |driver| {
            // SAFETY: writes one handle; destroyed with its owner.
            unsafe { (driver.stream_create)(&raw mut handle, STREAM_NON_BLOCKING) }
        })?;
        Ok(Stream { device: self.clone(), handle, owner: StreamOwner::This })
    }

    pub(crate) fn event(&self) -> Result<Event, DeviceError> {
        self.event_of(EVENT_NO_TIMING)
    }

    /// An event that remembers when it came.
    pub fn timer(&self) -> Result<Event, DeviceError> {
        self.event_of(0)
    }

    fn event_of(&self, flags: u32) -> Result<Event, DeviceError> {
        let mut handle = Handle::NONE;
        self.call("create an event", |driver| {
            // SAFETY: writes one handle; destroyed with its owner.
            unsafe { (driver.event_create)(&raw mut handle, flags) }
        })?;
        Ok(Event { device: self.clone(), handle })
    }

    /// Loads machine code.
    pub(crate) fn module(&self, code: &[u8]) -> Result<Module, DeviceError> {
        let mut handle = Handle::NONE;
        self.call("load the kernels", |driver| {
            // SAFETY: the code came whole from the vendor's compiler, which makes it self-describing.
            unsafe { (driver.module_load)(&raw mut handle, code.as_ptr().cast::<c_void>()) }
        })?;
        Ok(Module { device: self.clone(), handle })
    }

    /// Calls the driver with the device current on this thread.
    pub(crate) fn call(
        &self,
        what: &'static str,
        call: impl FnOnce(&Driver) -> Status,
    ) -> Result<(), DeviceError> {
        let api = &self.inner.api;
        api.check("make the device current", self.inner.activate())?;
        api.check(what, call(&api.driver))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.name)
    }
}

impl Inner {
    fn activate(&self) -> Status {
        match self.api.activate {
            // SAFETY: the context is retained until the device is dropped.
            Activate::Context { set, .. } => unsafe { set(self.context) },
            // SAFETY: the number is of a device that was found.
            Activate::Number { set } => unsafe { set(self.number) },
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Activate::Context { release, .. } = self.api.activate {
            // SAFETY: retained once, and everything made in it is gone: each owner held the device.
            // A failure has nobody left to tell.
            unsafe { release(self.number) };
        }
    }
}

/// Device memory. Freeing waits for the device.
pub struct Allocation {
    device: Device,
    address: u64,
    bytes: Bytes,
}

impl Allocation {
    /// Its first address, for kernels and for [`crate::ForeignBuffer`].
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Copies from the host to byte `offset`, and waits.
    ///
    /// # Panics
    /// Where the range leaves the allocation.
    pub fn write(&self, stream: &Stream, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let target = self.range(offset, bytes.len());
        self.device.call("copy to the device", |driver| {
            // SAFETY: the range lies in the allocation; the borrow outlives the wait below.
            unsafe {
                (driver.copy_to_device)(
                    target,
                    bytes.as_ptr().cast::<c_void>(),
                    bytes.len(),
                    stream.handle,
                )
            }
        })?;
        stream.synchronize()
    }

    /// Copies from byte `offset` to the host, and waits.
    ///
    /// # Panics
    /// Where the range leaves the allocation.
    pub fn read(&self, stream: &Stream, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let source = self.range(offset, bytes.len());
        self.device.call("copy to the host", |driver| {
            // SAFETY: the range lies in the allocation; the borrow outlives the wait below.
            unsafe {
                (driver.copy_to_host)(
                    bytes.as_mut_ptr().cast::<c_void>(),
                    source,
                    bytes.len(),
                    stream.handle,
                )
            }
        })?;
        stream.synchronize()
    }

    /// Address of a range.
    ///
    /// # Panics
    /// Where it leaves the allocation.
    fn range(&self, offset: u64, len: usize) -> u64 {
        let end = offset.checked_add(len as u64).expect("a range within the allocation");
        assert!(end <= self.bytes.get(), "range ends at {end} of {} bytes", self.bytes);
        self.address + offset
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let address = self.address;
        // A failure here was or will be met by a call that can report it.
        let freed = self.device.call("free memory", |driver| {
            // SAFETY: allocated once, freed once; the driver waits for work that uses it.
            unsafe { (driver.free)(address) }
        });
        drop(freed);
    }
}

/// Host memory that the device copies from and to.
pub(crate) struct Pinned {
    device: Device,
    start: Handle,
    size: usize,
}

impl Pinned {
    /// # Safety
    /// No copy from or to this memory is under way, nor begins while the slice lives.
    pub(crate) unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is ours, initialised, and by the caller's word the device's at no time.
        unsafe { std::slice::from_raw_parts_mut(self.start.0.cast::<u8>(), self.size) }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Its first byte, for a driver that reads it during a call.
    pub(crate) fn start(&self) -> *mut c_void {
        self.start.0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let start = self.start.0;
        // As for allocations.
        let freed = self.device.call("free pinned host memory", |driver| {
            // SAFETY: allocated once, freed once; owners wait for the copies that they enqueued.
            unsafe { (driver.host_free)(start) }
        });
        drop(freed);
    }
}

#[derive(Clone, Copy)]
enum StreamOwner {
    This,
    Engine,
}

/// A queue of device work, run in order.
pub struct Stream {
    device: Device,
    handle: Handle,
    owner: StreamOwner,
}

impl Stream {
    /// A stream that an engine made and will destroy.
    ///
    /// # Safety
    /// `raw` is a stream of this device, and outlives the result.
    pub unsafe fn of_engine(device: &Device, raw: *mut c_void) -> Self {
        Self { device: device.clone(), handle: Handle(raw), owner: StreamOwner::Engine }
    }

    /// Waits for everything enqueued so far.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let handle = self.handle;
        // SAFETY: the stream lives.
        self.device.call("synchronise", |driver| unsafe { (driver.stream_synchronize)(handle) })
    }

    /// Copies between two allocations, without waiting. Both must outlive the stream's work, which
    /// dropping them sees to.
    ///
    /// # Panics
    /// Where a range leaves its allocation.
    pub fn copy(
        &self,
        (target, to): (&Allocation, u64),
        (source, from): (&Allocation, u64),
        len: Bytes,
    ) -> Result<(), DeviceError> {
        let (to, from) = (target.range(to, len.index()), source.range(from, len.index()));
        self.device.call("copy on the device", |driver| {
            // SAFETY: both ranges lie in their allocations, whose freeing waits.
            unsafe { (driver.copy_on_device)(to, from, len.index(), self.handle) }
        })
    }

    /// Has what follows on this stream wait for the event.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        self.device.call("wait for an event", |driver| {
            // SAFETY: both live.
            unsafe { (driver.stream_wait)(self.handle, event.handle, 0) }
        })
    }

    /// Copies the first `len` bytes to the device, without waiting.
    ///
    /// # Safety
    /// `source` is neither written nor freed, and `target` neither read nor freed, until the copy is
    /// known to be done.
    pub(crate) unsafe fn upload(
        &self,
        target: &Allocation,
        source: &Pinned,
        len: usize,
    ) -> Result<(), DeviceError> {
        assert!(len <= source.size, "an upload within its host memory");
        let to = target.range(0, len);
        self.device.call("upload operations", |driver| {
            // SAFETY: both ranges were checked; the caller keeps both.
            unsafe { (driver.copy_to_device)(to, source.start.0, len, self.handle) }
        })
    }

    /// Copies 8 bytes of `source` to byte `offset` of `target`, without waiting.
    ///
    /// # Safety
    /// As for [`Stream::upload`], the other way round.
    pub(crate) unsafe fn download_word(
        &self,
        target: &Pinned,
        offset: usize,
        source: &Allocation,
    ) -> Result<(), DeviceError> {
        assert!(offset + 8 <= target.size, "a word within its host memory");
        let from = source.range(0, 8);
        let to = target.start.0.wrapping_byte_add(offset);
        self.device.call("download the fault count", |driver| {
            // SAFETY: both ranges were checked; the caller keeps both.
            unsafe { (driver.copy_to_host)(to, from, 8, self.handle) }
        })
    }

    /// Runs a kernel over `grid` blocks of `threads` threads, without waiting.
    ///
    /// # Safety
    /// `arguments` are those of the kernel, by count and type, and every address among them and in
    /// the tables they lead to stays valid until the kernel is done.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        grid: (u32, u32, u32),
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        self.device.call("launch a kernel", |driver| {
            // SAFETY: as the caller says; the driver copies the arguments before it returns.
            unsafe {
                (driver.launch)(
                    kernel.handle,
                    grid.0,
                    grid.1,
                    grid.2,
                    threads,
                    1,
                    1,
                    0,
                    self.handle,
                    arguments.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let StreamOwner::This = self.owner {
            let handle = self.handle;
            // As for allocations.
            let destroyed = self.device.call("destroy a stream", |driver| {
                // SAFETY: made once, destroyed once; the driver finishes its work first.
                unsafe { (driver.stream_destroy)(handle) }
            });
            drop(destroyed);
        }
    }
}

/// A point in a stream's work.
pub struct Event {
    device: Device,
    handle: Handle,
}

impl Event {
    /// Marks the end of what the stream holds now.
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.device.call("record an event", |driver| {
            // SAFETY: both live.
            unsafe { (driver.event_record)(self.handle, stream.handle) }
        })
    }

    /// True once the stream has come by the last record.
    pub(crate) fn is_past(&self) -> Result<bool, DeviceError> {
        let mut status = 0;
        self.device.call("query an event", |driver| {
            // SAFETY: the event lives.
            status = unsafe { (driver.event_query)(self.handle) };
            if status == NOT_READY { 0 } else { status }
        })?;
        Ok(status == 0)
    }

    /// Microseconds since another event. Both were recorded, and their stream has come by them.
    pub fn microseconds_since(&self, earlier: &Event) -> Result<f64, DeviceError> {
        let mut milliseconds = 0.0;
        self.device.call("read a time", |driver| {
            // SAFETY: writes one number.
            unsafe { (driver.event_elapsed)(&raw mut milliseconds, earlier.handle, self.handle) }
        })?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let handle = self.handle;
        // As for allocations.
        let destroyed = self.device.call("destroy an event", |driver| {
            // SAFETY: made once, destroyed once.
            unsafe { (driver.event_destroy)(handle) }
        });
        drop(destroyed);
    }
}

/// Loaded machine code.
pub(crate) struct Module {
    device: Device,
    handle: Handle,
}

/// A kernel of a module that its holder keeps.
pub(crate) struct Kernel {
    handle: Handle,
}

impl Module {
    pub(crate) fn kernel(&self, name: &std::ffi::CStr) -> Result<Kernel, DeviceError> {
        let mut handle = Handle::NONE;
        self.device.call("find a kernel", |driver| {
            // SAFETY: writes one handle; the name ends in zero.
            unsafe { (driver.module_function)(&raw mut handle, self.handle, name.as_ptr()) }
        })?;
        Ok(Kernel { handle })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let handle = self.handle;
        // As for allocations.
        let unloaded = self.device.call("unload the kernels", |driver| {
            // SAFETY: loaded once, unloaded once; whoever launches waits before it drops the module.
            unsafe { (driver.module_unload)(handle) }
        });
        drop(unloaded);
    }
}
