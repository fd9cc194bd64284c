//! Stores the state of one request in pages and resumes it in another slot.
//!
//! `cargo run --release -p statepages-copy --example checkpoint_roundtrip`

#![expect(clippy::print_stdout, reason = "an example reports to its reader")]

use std::time::Instant;

use statepages_copy::{CopyBackend, CopyPlan, CopyState, HostArena, HostBackend, TILE_BYTES};
use statepages_geometry::{
    BLOCK_TOKENS, CacheConfig, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat,
};
use statepages_page::{
    CheckpointId, ImageRule, MaintenanceOps, PageId, Pages, RestoreOp, SlotId, StoreOp, Tokens,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = CacheConfig::v4_pro();
    for image in [ImageRule::Whole, ImageRule::Carried, ImageRule::Live] {
        let options = CacheOptions {
            kv: KvFormat::Fp8,
            indexer: IndexerFormat::Fp8,
            draft_tokens: 1,
            block: BLOCK_TOKENS,
            dcp_world_size: 1,
            image,
        };
        round_trip(&Dsv4Geometry::new(&config, &options)?)?;
    }
    Ok(())
}

fn round_trip(geometry: &Dsv4Geometry) -> Result<(), Box<dyn std::error::Error>> {
    let layout = geometry.layout();
    let plan = CopyPlan::new(layout);
    println!(
        "{}: image of {} bytes in {} pages, {} spans, {} tiles",
        layout.image.rule.name(),
        plan.image_bytes(),
        plan.units(),
        plan.spans().len(),
        plan.tiles(TILE_BYTES).count(),
    );
    let (owner, heir) = (SlotId::new(0), SlotId::new(1));
    let boundary = BLOCK_TOKENS.boundary_floor(Tokens::new(8500));
    let mut arena = HostArena::new(layout, Pages::new(40), 2)?;
    for plane in 0..geometry.planes() {
        for (index, byte) in arena.slot_mut(plane, owner).iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
    }

    // Any pages will do, in any order.
    let units: Vec<PageId> =
        (0..plan.units().get()).map(|unit| PageId::new(unit * 13 % 40)).collect();
    let mut backend = HostBackend::new(layout.clone());
    let (checkpoint, tag) = (CheckpointId::new(7), layout.id.tag());
    let image = plan.image_bytes();
    let mut stores = MaintenanceOps::default();
    let range = stores.push_units(&units);
    stores.stores.push(StoreOp {
        checkpoint,
        slot: owner,
        boundary,
        units: range,
        image,
        layout: tag,
    });
    let mut restores = MaintenanceOps::default();
    let range = restores.push_units(&units);
    restores.restores.push(RestoreOp {
        checkpoint,
        slot: heir,
        boundary,
        units: range,
        image,
        layout: tag,
    });
    for (what, ops) in [("store", &stores), ("restore", &restores)] {
        let start = Instant::now();
        let rounds = 20;
        for _ in 0..rounds {
            let ticket = backend.submit(&mut arena, ops)?;
            assert_eq!(backend.poll(&mut arena, ticket)?, CopyState::Done);
        }
        let seconds = start.elapsed().as_secs_f64() / f64::from(rounds);
        let rate = image.get() as f64 / seconds / 1e9;
        println!("  {what}: {:.2} ms, {rate:.1} GB/s", seconds * 1e3);
    }

    // The heir's window is the owner's, layer by layer.
    let window = geometry.config().sliding_window;
    for &layer in geometry.layers() {
        for position in boundary.get() - window..boundary.get() {
            for plane in 0..geometry.planes() {
                let row = geometry.window_row(layer, Tokens::new(position), plane);
                let of = |slot| &arena.slot(row.plane, slot)[row.bytes.clone()];
                assert_eq!(of(owner), of(heir), "window of {layer:?} at {position}");
            }
        }
    }
    println!("  resumed at {} tokens", boundary.get());
    Ok(())
}
