//! The arms of `statepages bench copy` on a GPU, timed by the device's own events.
//!
//! A timed batch is enqueued behind a kernel that keeps the device busy, so that the events bracket
//! the device's work and not the host's. memcpy is timed in the same way.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use statepages_copy::{CopyBackend, CopyState, CopyTicket};
use statepages_cuda::{
    Allocation, Buffer, Checks, CopyGraph, Device, DeviceBackend, DeviceMemory, DeviceOptions,
    Event, GraphShape, KERNEL_SOURCE, KernelShape, Libraries, Passing, Probe, Replay,
    StagingLimits, Vendor,
};
use statepages_page::{Bytes, MaintenanceOps, StateLayout};

use crate::args::{BenchCopyArgs, BenchDevice, BenchPassing};
use crate::bench_copy::{Arms, Sizes, Timed};

/// Steps of the kernel that keeps the device busy: some 100 us on an H200, longer than enqueuing
/// takes.
const HOLD_ROUNDS: u64 = 4_000;

pub(crate) struct GpuArms {
    device: Device,
    passing: BenchPassing,
    /// The last graph, and the images that it was captured for.
    graph: Option<(u32, CopyGraph)>,
    backend: DeviceBackend,
    memory: DeviceMemory,
    source: Allocation,
    target: Allocation,
    scratch: Allocation,
    before: Event,
    after: Event,
}

impl GpuArms {
    pub(crate) fn new(args: &BenchCopyArgs, layout: &StateLayout, sizes: Sizes) -> Result<Self> {
        let (vendor, ordinal) = match args.device {
            BenchDevice::Cpu => bail!("--device cpu is no GPU"),
            BenchDevice::Cuda(ordinal) => (Vendor::Cuda, ordinal),
            BenchDevice::Hip(ordinal) => (Vendor::Hip, ordinal),
        };
        let shape = args.shape.map_or(KernelShape::MEASURED, |shape| shape.0);
        let source = match &args.kernels {
            None => KERNEL_SOURCE.into(),
            Some(file) => {
                let read = std::fs::read_to_string(file);
                read.with_context(|| format!("--kernels {}", file.display()))?.into()
            }
        };
        let libraries = Libraries::installed(vendor);
        let device = Device::open(&libraries, ordinal).context("--device")?;
        let memory = DeviceMemory::allocate(&device, layout, sizes.pages, sizes.slots)?;
        let options = DeviceOptions {
            shape,
            checks: Checks::Host,
            staging: StagingLimits { batches: 4, images: sizes.images_max },
            passing: match args.passing {
                BenchPassing::Arguments => Passing::Arguments,
                BenchPassing::Upload | BenchPassing::Graph => Passing::Upload,
            },
            cache: cache_folder(),
            source,
        };
        let backend = DeviceBackend::new(&libraries, layout.clone(), &memory, &options)?;
        tracing::info!(device = device.name(), cache = ?backend.cache(), "kernels loaded");
        Ok(Self {
            source: device.allocate(sizes.contiguous)?,
            target: device.allocate(sizes.contiguous)?,
            scratch: device.allocate(Bytes::new(16))?,
            before: device.timer()?,
            after: device.timer()?,
            passing: args.passing,
            graph: None,
            backend,
            memory,
            device,
        })
    }

    fn enqueue(&mut self, ops: &MaintenanceOps) -> Result<CopyTicket> {
        let Some((_, graph)) = &mut self.graph else {
            return Ok(self.backend.submit(&mut self.memory, ops)?);
        };
        match self.backend.replay(graph, &mut self.memory, ops)? {
            Replay::Launched(ticket) => Ok(ticket),
            refused @ (Replay::Busy | Replay::TooLarge) => bail!("replay of a graph: {refused:?}"),
        }
    }

    /// Captures a graph for batches of as many images, if that is how batches are passed.
    fn capture(&mut self, ops: &MaintenanceOps) -> Result<()> {
        let images = (ops.stores.len() + ops.restores.len()) as u32;
        let captured = self.graph.as_ref().is_some_and(|&(of, _)| of == images);
        if self.passing == BenchPassing::Graph && !captured {
            let shape = GraphShape { launches: 1, relocations: 0, images };
            self.graph = Some((images, self.backend.capture(shape)?));
        }
        Ok(())
    }

    fn hold(&self) -> Result<()> {
        self.backend.kernels().hold(self.backend.stream(), HOLD_ROUNDS, &self.scratch)?;
        Ok(())
    }
}

/// Where compiled kernels are kept: the user's cache folder, if there is one.
fn cache_folder() -> Option<std::path::PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from);
    let home =
        || std::env::var_os("HOME").map(|home| std::path::PathBuf::from(home).join(".cache"));
    base.or_else(home).map(|base| base.join("statepages"))
}

impl Arms for GpuArms {
    fn name(&self) -> String {
        self.device.name().into()
    }

    fn batch(&mut self, ops: &MaintenanceOps) -> Result<Timed> {
        self.capture(ops)?;
        self.hold()?;
        self.before.record(self.backend.stream())?;
        let started = Instant::now();
        let ticket = self.enqueue(ops)?;
        let enqueue_us = started.elapsed().as_secs_f64() * 1e6;
        self.after.record(self.backend.stream())?;
        self.backend.stream().synchronize()?;
        while self.backend.poll(&mut self.memory, ticket)? == CopyState::Pending {}
        Ok(Timed { launch_us: self.after.microseconds_since(&self.before)?, enqueue_us })
    }

    fn memcpy(&mut self, offset: u64, len: u64) -> Result<f64> {
        self.hold()?;
        let stream = self.backend.stream();
        self.before.record(stream)?;
        stream.copy((&self.target, offset), (&self.source, offset), Bytes::new(len))?;
        self.after.record(stream)?;
        stream.synchronize()?;
        Ok(self.after.microseconds_since(&self.before)?)
    }

    fn fill(&mut self, seed: u64) -> Result<()> {
        let probe = Probe::new(&self.device, self.backend.kernels())?;
        let buffers: Vec<Buffer> = self.memory.buffers().collect();
        for buffer in buffers {
            probe.fill(&mut self.memory, buffer, None, seed)?;
        }
        Ok(())
    }

    fn digests(&mut self, buffer: Buffer, items: &[u32]) -> Result<Vec<u64>> {
        let probe = Probe::new(&self.device, self.backend.kernels())?;
        Ok(probe.digests(&self.memory, buffer, Some(items))?)
    }
}
