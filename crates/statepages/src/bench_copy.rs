//! `statepages bench copy`: batches of images against memcpy of the same bytes.
//!
//! The two arms take turns. Batches take turns on disjoint images of `--rotate` bytes, so no round
//! finds its bytes in a cache. After the timed rounds every byte is filled anew, one batch is run,
//! and its images are compared with what the host backend makes of the same bytes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::json;
use statepages_copy::{CopyBackend, HostArena, HostBackend};
use statepages_cuda::{Buffer, pattern};
use statepages_geometry::BLOCK_TOKENS;
use statepages_page::{
    Boundary, Bytes, CheckpointId, MaintenanceOps, PageId, Pages, RestoreOp, SlotId, StateLayout,
    StoreOp,
};

use crate::args::{BenchCopyArgs, BenchDevice, Direction, Units};
use crate::bench_gpu::GpuArms;
use crate::geometry_command::known;

/// Seed of contents and of the order of units.
const SEED: u64 = 20_260;
/// Images of a batch that are compared byte for byte; of larger batches every n-th.
const COMPARED_MAX: usize = 16;

/// One timed batch.
pub(crate) struct Timed {
    /// From the first copy's start to the last one's end.
    pub(crate) launch_us: f64,
    /// Time of the host's call.
    pub(crate) enqueue_us: f64,
}

/// What is measured on: pages and slots, and two buffers for memcpy.
pub(crate) trait Arms {
    /// What the device is called.
    fn name(&self) -> String;
    /// Copies a batch.
    fn batch(&mut self, ops: &MaintenanceOps) -> Result<Timed>;
    /// Copies `len` bytes at `offset` of one buffer to the other, and says how long it took.
    fn memcpy(&mut self, offset: u64, len: u64) -> Result<f64>;
    /// Fills pages and slots with the pattern of `seed`.
    fn fill(&mut self, seed: u64) -> Result<()>;
    /// Digests of the listed items.
    fn digests(&mut self, buffer: Buffer, items: &[u32]) -> Result<Vec<u64>>;
}

/// Sizes that serve every row of a table.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) pages: Pages,
    pub(crate) slots: u32,
    /// Bytes of each memcpy buffer.
    pub(crate) contiguous: Bytes,
    pub(crate) images_max: u32,
}

struct Row {
    images: u32,
    bytes: u64,
    launch_us: f64,
    memcpy_us: f64,
    enqueue_us: f64,
    verified: bool,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.launch_us / self.memcpy_us
    }

    /// Bytes read and written, in 10^12 a second.
    fn tb_s(&self) -> f64 {
        2.0 * self.bytes as f64 / self.launch_us / 1e6
    }
}

pub(crate) fn run(args: &BenchCopyArgs) -> Result<()> {
    let layout = known(args.model, args.layout, BLOCK_TOKENS)?.layout().clone();
    let sizes = sizes(args, &layout);
    let mut arms: Box<dyn Arms> = match args.device {
        BenchDevice::Cpu => Box::new(CpuArms::new(&layout, sizes)?),
        BenchDevice::Cuda(_) | BenchDevice::Hip(_) => Box::new(GpuArms::new(args, &layout, sizes)?),
    };
    let mut rows = Vec::new();
    for &images in &args.images {
        rows.push(row(args, &layout, sizes, images, &mut *arms)?);
    }
    if let Some(file) = &args.picture {
        let title = format!(
            "{:?}, {} images, {:?}, {}",
            args.model,
            layout.image.rule.name(),
            args.direction,
            arms.name()
        );
        let picture = picture(&rows, &title);
        std::fs::write(file, picture).with_context(|| format!("{}", file.display()))?;
    }
    print(args, &layout, &arms.name(), &rows)?;
    if rows.iter().all(|row| row.verified) { Ok(()) } else { Err(anyhow!("images differ")) }
}

/// Disjoint batches that one row takes turns on.
fn turns(args: &BenchCopyArgs, layout: &StateLayout, images: u32) -> u32 {
    let batch = layout.image.image_bytes().get() * u64::from(images);
    args.rotate.0.get().div_ceil(batch).max(1) as u32
}

fn sizes(args: &BenchCopyArgs, layout: &StateLayout) -> Sizes {
    let most = args.images.iter().map(|&images| images * turns(args, layout, images));
    let slots = most.max().expect("there is a row");
    Sizes {
        pages: Pages::new(slots * layout.units_per_checkpoint().get()),
        slots,
        contiguous: Bytes::new(layout.image.image_bytes().get() * u64::from(slots)),
        images_max: *args.images.iter().max().expect("there is a row"),
    }
}

/// Batches of one row, slots in order.
fn batches(
    args: &BenchCopyArgs,
    layout: &StateLayout,
    sizes: Sizes,
    images: u32,
) -> Vec<MaintenanceOps> {
    let mut pages: Vec<u32> = (0..sizes.pages.get()).collect();
    if args.units == Units::Anywhere {
        let mut state = SEED;
        for index in (1..pages.len()).rev() {
            state = pattern::mix(state.wrapping_add(index as u64));
            pages.swap(index, (state % (index as u64 + 1)) as usize);
        }
    }
    let mut free = pages.into_iter().map(PageId::new);
    let units = layout.units_per_checkpoint().index();
    let mut slot = 0;
    let mut batch = || {
        let mut ops = MaintenanceOps::default();
        for image in 0..images {
            let ids: Vec<PageId> = free.by_ref().take(units).collect();
            let units = ops.push_units(&ids);
            let boundary = Boundary::from_raw(8192 + 256 * (slot % 128));
            let (checkpoint, at) = (CheckpointId::new(u64::from(slot)), SlotId::new(slot));
            let (image_bytes, layout) = (layout.image.image_bytes(), layout.id.tag());
            let stores = match args.direction {
                Direction::Store => true,
                Direction::Restore => false,
                Direction::Mixed => image % 2 == 0,
            };
            if stores {
                ops.stores.push(StoreOp {
                    checkpoint,
                    slot: at,
                    boundary,
                    units,
                    image: image_bytes,
                    layout,
                });
            } else {
                ops.restores.push(RestoreOp {
                    checkpoint,
                    slot: at,
                    boundary,
                    units,
                    image: image_bytes,
                    layout,
                });
            }
            slot += 1;
        }
        ops
    };
    (0..turns(args, layout, images)).map(|_| batch()).collect()
}

fn row(
    args: &BenchCopyArgs,
    layout: &StateLayout,
    sizes: Sizes,
    images: u32,
    arms: &mut dyn Arms,
) -> Result<Row> {
    let batches = batches(args, layout, sizes, images);
    let bytes = layout.image.image_bytes().get() * u64::from(images);
    let (mut launches, mut enqueues, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    // Two rounds beforehand: what is made on first use is made, and clocks are up.
    for round in 0..args.rounds as usize + 2 {
        let turn = round % batches.len();
        let timed = arms.batch(&batches[turn])?;
        let memcpy_us = arms.memcpy(turn as u64 * bytes, bytes)?;
        if round >= 2 {
            launches.push(timed.launch_us);
            enqueues.push(timed.enqueue_us);
            copies.push(memcpy_us);
        }
    }
    let verified = verify(layout, &batches[0], arms)?;
    let (launch_us, memcpy_us) = (median(launches), median(copies));
    Ok(Row { images, bytes, launch_us, memcpy_us, enqueue_us: median(enqueues), verified })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    f64::midpoint(low, high)
}

/// One image of a batch.
struct Moved<'a> {
    slot: SlotId,
    units: &'a [PageId],
    /// The batch with this operation alone, on units and slot 0.
    alone: MaintenanceOps,
}

fn verify(layout: &StateLayout, batch: &MaintenanceOps, arms: &mut dyn Arms) -> Result<bool> {
    arms.fill(SEED)?;
    arms.batch(batch)?;
    let dense: Vec<PageId> = (0..layout.units_per_checkpoint().get()).map(PageId::new).collect();
    let stores = batch.stores.iter().map(|op| {
        let mut alone = MaintenanceOps::default();
        let units = alone.push_units(&dense);
        alone.stores.push(StoreOp { slot: SlotId::new(0), units, ..*op });
        Moved { slot: op.slot, units: batch.units(op.units), alone }
    });
    let restores = batch.restores.iter().map(|op| {
        let mut alone = MaintenanceOps::default();
        let units = alone.push_units(&dense);
        alone.restores.push(RestoreOp { slot: SlotId::new(0), units, ..*op });
        Moved { slot: op.slot, units: batch.units(op.units), alone }
    });
    let count = batch.stores.len() + batch.restores.len();
    for moved in stores.chain(restores).step_by(count.div_ceil(COMPARED_MAX)) {
        if !equals_the_host(layout, &moved, arms)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equals_the_host(layout: &StateLayout, moved: &Moved<'_>, arms: &mut dyn Arms) -> Result<bool> {
    let mut arena = HostArena::new(layout, layout.units_per_checkpoint(), 1)?;
    let slot = SlotId::new(0);
    for region in 0..layout.page.regions().len() {
        for (at, unit) in (0..).zip(moved.units) {
            let key = Buffer::Region(region).key(SEED);
            let page = arena.page_mut(region, PageId::new(at));
            pattern::fill(key, u64::from(unit.raw()), 0, page);
        }
    }
    for plane in 0..layout.slot.planes().len() {
        let key = Buffer::Plane(plane).key(SEED);
        pattern::fill(key, u64::from(moved.slot.raw()), 0, arena.slot_mut(plane, slot));
    }
    HostBackend::new(layout.clone()).submit(&mut arena, &moved.alone)?;
    let units: Vec<u32> = moved.units.iter().map(|unit| unit.raw()).collect();
    for region in 0..layout.page.regions().len() {
        let pages = (0..units.len() as u32).map(|at| arena.page(region, PageId::new(at)));
        let expected: Vec<u64> = pages.map(pattern::digest).collect();
        if arms.digests(Buffer::Region(region), &units)? != expected {
            return Ok(false);
        }
    }
    for plane in 0..layout.slot.planes().len() {
        let expected = vec![pattern::digest(arena.slot(plane, slot))];
        if arms.digests(Buffer::Plane(plane), &[moved.slot.raw()])? != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

fn print(args: &BenchCopyArgs, layout: &StateLayout, device: &str, rows: &[Row]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "images": row.images,
                    "bytes": row.bytes,
                    "launch_us": row.launch_us,
                    "memcpy_us": row.memcpy_us,
                    "ratio": row.ratio(),
                    "tb_s": row.tb_s(),
                    "enqueue_us": row.enqueue_us,
                    "verified": row.verified,
                })
            })
            .collect();
        let direction = format!("{:?}", args.direction).to_lowercase();
        let report = json!({
            "device": device,
            "layout_id": layout.id.as_str(),
            "image": layout.image.rule.name(),
            "direction": direction,
            "units": format!("{:?}", args.units),
            "passing": format!("{:?}", args.passing).to_lowercase(),
            "rounds": args.rounds,
            "image_bytes": layout.image.image_bytes().get(),
            "slot_bytes": layout.slot.slot_bytes().get(),
            "units_per_checkpoint": layout.units_per_checkpoint().get(),
            "rows": rows,
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(out, "{device}, {} images, {:?}", layout.image.rule.name(), args.direction)?;
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header([
        "images",
        "bytes",
        "launch us",
        "memcpy us",
        "ratio",
        "TB/s",
        "enqueue us",
        "verified",
    ]);
    for row in rows {
        table.add_row([
            row.images.to_string(),
            row.bytes.to_string(),
            format!("{:.1}", row.launch_us),
            format!("{:.1}", row.memcpy_us),
            format!("{:.3}", row.ratio()),
            format!("{:.3}", row.tb_s()),
            format!("{:.1}", row.enqueue_us),
            row.verified.to_string(),
        ]);
    }
    writeln!(out, "{table}")?;
    Ok(())
}

/// Rate of both arms against images, the images on a logarithmic axis.
fn picture(rows: &[Row], title: &str) -> String {
    let (width, height, left, top) = (640.0, 320.0, 60.0, 40.0);
    let memcpy = |row: &Row| 2.0 * row.bytes as f64 / row.memcpy_us / 1e6;
    let most = rows.iter().flat_map(|row| [row.tb_s(), memcpy(row)]).fold(f64::MIN, f64::max);
    let log = |row: &Row| f64::from(row.images).log2();
    let first = rows.iter().map(log).fold(f64::MAX, f64::min);
    let last = rows.iter().map(log).fold(f64::MIN, f64::max);
    let x = |row: &Row| left + (log(row) - first) / (last - first).max(1.0) * (width - left - 20.0);
    let y = |rate: f64| top + (1.0 - rate / most) * (height - top - 40.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"20\">{title}</text>\n"
    );
    let mut line = |name: &str, colour: &str, rate: &dyn Fn(&Row) -> f64, label: f64| {
        let points: Vec<String> =
            rows.iter().map(|row| format!("{:.1},{:.1}", x(row), y(rate(row)))).collect();
        let points = points.join(" ");
        // Writing to a string cannot fail.
        writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{}\" y=\"{label}\" fill=\"{colour}\">{name}</text>",
            width - 120.0
        )
        .expect("a string takes what it is given");
    };
    line("statepages", "#0b5fa5", &Row::tb_s, height - 70.0);
    line("memcpy", "#a55b0b", &memcpy, height - 52.0);
    for row in rows {
        writeln!(svg, "<text x=\"{:.1}\" y=\"{}\">{}</text>", x(row), height - 20.0, row.images)
            .expect("a string takes what it is given");
    }
    for step in 0..=4 {
        let rate = most * f64::from(step) / 4.0;
        writeln!(svg, "<text x=\"8\" y=\"{:.1}\">{rate:.2}</text>", y(rate))
            .expect("a string takes what it is given");
    }
    writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\">images of a batch; TB/s read and written</text>\n</svg>",
        height - 4.0
    )
    .expect("a string takes what it is given");
    svg
}

/// The host backend, which copies during the call.
struct CpuArms {
    backend: HostBackend,
    arena: HostArena,
    source: Vec<u8>,
    target: Vec<u8>,
}

impl CpuArms {
    fn new(layout: &StateLayout, sizes: Sizes) -> Result<Self> {
        let mut arena = HostArena::new(layout, sizes.pages, sizes.slots)?;
        fill_arena(&mut arena, layout, SEED);
        let bytes = sizes.contiguous.index();
        Ok(Self {
            backend: HostBackend::new(layout.clone()),
            arena,
            source: vec![1; bytes],
            target: vec![2; bytes],
        })
    }
}

impl Arms for CpuArms {
    fn name(&self) -> String {
        "cpu".into()
    }

    fn batch(&mut self, ops: &MaintenanceOps) -> Result<Timed> {
        let started = Instant::now();
        self.backend.submit(&mut self.arena, ops)?;
        let micros = started.elapsed().as_secs_f64() * 1e6;
        Ok(Timed { launch_us: micros, enqueue_us: micros })
    }

    fn memcpy(&mut self, offset: u64, len: u64) -> Result<f64> {
        let range = offset as usize..(offset + len) as usize;
        let started = Instant::now();
        self.target[range.clone()].copy_from_slice(&self.source[range]);
        let micros = started.elapsed().as_secs_f64() * 1e6;
        std::hint::black_box(&self.target);
        Ok(micros)
    }

    fn fill(&mut self, seed: u64) -> Result<()> {
        let layout = self.backend.layout().clone();
        fill_arena(&mut self.arena, &layout, seed);
        Ok(())
    }

    fn digests(&mut self, buffer: Buffer, items: &[u32]) -> Result<Vec<u64>> {
        let digest = |&item: &u32| match buffer {
            Buffer::Region(region) => pattern::digest(self.arena.page(region, PageId::new(item))),
            Buffer::Plane(plane) => pattern::digest(self.arena.slot(plane, SlotId::new(item))),
        };
        Ok(items.iter().map(digest).collect())
    }
}

fn fill_arena(arena: &mut HostArena, layout: &StateLayout, seed: u64) {
    for region in 0..layout.page.regions().len() {
        let key = Buffer::Region(region).key(seed);
        for page in 0..arena.pages().get() {
            pattern::fill(key, u64::from(page), 0, arena.page_mut(region, PageId::new(page)));
        }
    }
    for plane in 0..layout.slot.planes().len() {
        let key = Buffer::Plane(plane).key(seed);
        for slot in 0..arena.slots() {
            pattern::fill(key, u64::from(slot), 0, arena.slot_mut(plane, SlotId::new(slot)));
        }
    }
}
