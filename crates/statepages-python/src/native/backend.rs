//! Copy backends on arrays that an engine lends: host memory, and CUDA or HIP devices.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use statepages_copy::{CopyBackend, CopyError, CopyState, CopyTicket, HostBackend};
use statepages_cuda::{
    Checks, Device, DeviceBackend, DeviceMemory, DeviceOptions, KERNEL_SOURCE, KernelShape,
    Libraries, StagingLimits, Vendor,
};

use super::error::{MemoryRefused, copy_error, device_error};
use super::layout::PyStateLayout;
use super::ops::PyMaintenanceOps;
use crate::bug::{bug, guarded};
use crate::dlpack::Place;
use crate::foreign::{LentMemory, engine_stream};

/// A backend with its memory. Waiting for its lock, and all that it does, runs without the GIL.
struct Copies<B: CopyBackend> {
    backend: B,
    memory: B::Memory,
    issued: u64,
}

impl<B: CopyBackend> Copies<B> {
    fn submit(&mut self, ops: &PyMaintenanceOps) -> Result<u64, CopyError> {
        let ticket = self.backend.submit(&mut self.memory, &ops.ops)?;
        self.issued = ticket.raw() + 1;
        Ok(ticket.raw())
    }

    /// Whether a batch is done; none for a ticket that was never issued.
    fn poll(&mut self, ticket: u64) -> Option<Result<bool, CopyError>> {
        (ticket < self.issued).then(|| {
            let state = self.backend.poll(&mut self.memory, CopyTicket::new(ticket))?;
            Ok(state == CopyState::Done)
        })
    }
}

/// Runs a call on a locked backend without the GIL.
fn detached<B: Send, R: Send>(
    py: Python<'_>,
    copies: &Mutex<B>,
    call: impl FnOnce(&mut B) -> R + Send,
) -> PyResult<R> {
    py.detach(|| {
        guarded(|| {
            let mut copies = copies.lock().map_err(|_| ())?;
            Ok(call(&mut copies))
        })
    })?
    .map_err(|()| bug("an earlier call found a broken invariant; discard the backend"))
}

fn issued<T>(answer: Option<Result<T, CopyError>>, ticket: u64) -> PyResult<T> {
    let answer = answer.ok_or_else(|| {
        PyIndexError::new_err(format!("ticket {ticket}: expected one that submit has answered"))
    })?;
    answer.map_err(copy_error)
}

/// Copies in host memory, at once.
#[pyclass(name = "HostBackend", module = "statepages", frozen)]
pub(crate) struct PyHostBackend {
    copies: Mutex<Copies<HostBackend<LentMemory>>>,
    pages: u32,
    slots: u32,
}

#[pymethods]
impl PyHostBackend {
    /// One array per page region and one per slot plane, each lent by DLPack.
    #[new]
    #[pyo3(signature = (layout, *, regions, planes))]
    fn new(
        layout: &PyStateLayout,
        regions: Vec<Bound<'_, PyAny>>,
        planes: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        use statepages_copy::HostMemory as _;

        let memory = LentMemory::new(&layout.layout, &regions, &planes)?;
        if memory.place() != Place::Host {
            return Err(MemoryRefused::new_err(format!(
                "regions[0]: expected an array on the host, got one on {:?}",
                memory.place()
            )));
        }
        let (pages, slots) = (memory.pages().get(), memory.slots());
        let backend = HostBackend::over(layout.layout.clone());
        Ok(Self { copies: Mutex::new(Copies { backend, memory, issued: 0 }), pages, slots })
    }

    /// Pages of the memory.
    #[getter]
    const fn pages(&self) -> u32 {
        self.pages
    }

    /// Slots of the memory.
    #[getter]
    const fn slots(&self) -> u32 {
        self.slots
    }

    /// Batches take effect in the order of submission.
    #[classattr]
    #[pyo3(name = "ordered")]
    const ORDERED: bool = true;

    /// Runs a batch's copies and answers its ticket.
    fn submit(&self, ops: &PyMaintenanceOps, py: Python<'_>) -> PyResult<u64> {
        detached(py, &self.copies, |copies| copies.submit(ops))?.map_err(copy_error)
    }

    /// Whether a batch is done.
    fn poll(&self, ticket: u64, py: Python<'_>) -> PyResult<bool> {
        issued(detached(py, &self.copies, |copies| copies.poll(ticket))?, ticket)
    }

    /// Waits until a batch is done.
    fn wait(&self, ticket: u64, py: Python<'_>) -> PyResult<()> {
        self.poll(ticket, py).map(drop)
    }

    /// Ends a failure. Earlier tickets are void.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, &self.copies, |copies| copies.backend.reset())
    }
}

/// Copies on a CUDA or HIP device. Nothing is synchronised: a batch is enqueued.
#[pyclass(name = "CudaBackend", module = "statepages", frozen)]
pub(crate) struct PyCudaBackend {
    // Dropped first: it may still read what is lent.
    copies: Mutex<Copies<DeviceBackend>>,
    /// Keeps the arrays.
    _lent: LentMemory,
    device: Device,
    ordered: bool,
}

#[pymethods]
impl PyCudaBackend {
    /// One array per page region and one per slot plane, all on one device. `stream` is the handle of
    /// the engine's stream, such as `torch.cuda.current_stream().cuda_stream`: batches then take
    /// effect in order with what the engine enqueues there. Without it the backend has a stream of
    /// its own, and what it touches waits for `poll`.
    #[new]
    #[pyo3(signature = (
        layout, *, regions, planes, stream=None, cache=None, staging_batches=4, staging_images=64
    ))]
    #[expect(clippy::too_many_arguments, reason = "named in Python")]
    fn new(
        layout: &PyStateLayout,
        regions: Vec<Bound<'_, PyAny>>,
        planes: Vec<Bound<'_, PyAny>>,
        stream: Option<u64>,
        cache: Option<PathBuf>,
        staging_batches: u32,
        staging_images: u32,
        py: Python<'_>,
    ) -> PyResult<Self> {
        let lent = LentMemory::new(&layout.layout, &regions, &planes)?;
        let (vendor, ordinal) = match lent.place() {
            Place::Cuda(ordinal) => (Vendor::Cuda, ordinal),
            Place::Hip(ordinal) => (Vendor::Hip, ordinal),
            Place::Host => {
                return Err(MemoryRefused::new_err(
                    "regions[0]: expected an array on a device, got one on the host",
                ));
            }
        };
        let libraries = Libraries::installed(vendor);
        let device = Device::open(&libraries, ordinal).map_err(device_error)?;
        let memory: DeviceMemory = lent.on_device(&device, &layout.layout)?;
        let options = DeviceOptions {
            shape: KernelShape::MEASURED,
            checks: Checks::Host,
            staging: StagingLimits { batches: staging_batches, images: staging_images },
            passing: statepages_cuda::Passing::Arguments,
            cache,
            source: KERNEL_SOURCE.into(),
        };
        let stream = stream.map(|handle| engine_stream(&device, handle)).transpose()?;
        let (ordered, layout) = (stream.is_some(), layout.layout.clone());
        let (memory, backend) = py
            .detach(|| {
                let backend = match stream {
                    Some(stream) => {
                        DeviceBackend::on_stream(&libraries, layout, &memory, &options, stream)
                    }
                    None => DeviceBackend::new(&libraries, layout, &memory, &options),
                };
                backend.map(|backend| (memory, backend))
            })
            .map_err(device_error)?;
        let copies = Mutex::new(Copies { backend, memory, issued: 0 });
        Ok(Self { copies, _lent: lent, device, ordered })
    }

    /// What the driver calls the device.
    #[getter]
    fn device(&self) -> String {
        self.device.name().to_owned()
    }

    /// Whether batches take effect in the order of submission, with what the engine enqueues.
    #[getter]
    const fn ordered(&self) -> bool {
        self.ordered
    }

    /// Enqueues a batch's copies and answers its ticket.
    fn submit(&self, ops: &PyMaintenanceOps, py: Python<'_>) -> PyResult<u64> {
        detached(py, &self.copies, |copies| copies.submit(ops))?.map_err(copy_error)
    }

    /// Whether a batch is done.
    fn poll(&self, ticket: u64, py: Python<'_>) -> PyResult<bool> {
        issued(detached(py, &self.copies, |copies| copies.poll(ticket))?, ticket)
    }

    /// Waits until a batch is done, and with it all that was enqueued before.
    fn wait(&self, ticket: u64, py: Python<'_>) -> PyResult<()> {
        let waited = detached(py, &self.copies, |copies| {
            let waited = copies.backend.stream().synchronize().map_err(CopyError::from);
            waited.map(|()| copies.poll(ticket))
        })?;
        issued(waited.map_err(copy_error)?, ticket).map(drop)
    }

    /// Stores that the next batch may bring without memory being allocated for them.
    fn store_room(&self, py: Python<'_>) -> PyResult<u32> {
        detached(py, &self.copies, |copies| copies.backend.store_room())?.map_err(copy_error)
    }

    /// Ends a failure, after waiting for the device. Earlier tickets are void.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, &self.copies, |copies| copies.backend.reset())
    }
}
