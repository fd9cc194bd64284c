//! `statepages geometry`: what a config's pages, slots and images measure, and what fits into memory.

use std::io::Write as _;

use anyhow::{Context, Result, anyhow};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};
use statepages_copy::CopyPlan;
use statepages_geometry::{
    Budget, CacheConfig, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat, LayerClass,
};
use statepages_page::{BlockSize, Bytes, ImageRule};
use statepages_weights::read_config;

use crate::args::{GeometryArgs, Image, Indexer, Kv, LayoutArgs, ModelName};
use crate::given::FlagError;
use crate::size;

/// Bytes of the tiles that copies are counted in.
const TILE_BYTES: u64 = 4_096;

pub(crate) fn run(args: &GeometryArgs) -> Result<()> {
    let block = BlockSize::new(args.block_size).expect("the flag's range starts at 1");
    let geometry = match (&args.model, &args.config) {
        (Some(model), None) => known(*model, args.layout, block)?,
        (None, Some(path)) => {
            let file = || format!("--config: {}", path.display());
            let config = read_config(path).with_context(file)?;
            Dsv4Geometry::new(&config.cache, &options(args.layout, block)).with_context(file)?
        }
        _ => return Err(anyhow!("expected either --model or --config")),
    };
    let facts = facts(&geometry, args)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", Value::Object(facts))?;
    } else {
        let mut table = Table::new();
        table.load_style(NOTHING);
        // The layout id is a line of its own: it is longer than any column.
        for (name, value) in facts.iter().filter(|(name, _)| *name != "layout_id") {
            let shown = match (name.ends_with("_bytes"), value.as_u64()) {
                (true, Some(bytes)) => size::shown(Bytes::new(bytes)),
                _ => String::new(),
            };
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            table.add_row([name.replace('_', " "), value, shown]);
        }
        if let Some(values) = table.column_mut(1) {
            values.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(out, "{table}\n\nlayout id: {}", geometry.layout().id)?;
    }
    Ok(())
}

fn facts(geometry: &Dsv4Geometry, args: &GeometryArgs) -> Result<Map<String, Value>> {
    let layout = geometry.layout();
    let plan = CopyPlan::new(layout);
    let of = |class| geometry.layers().iter().filter(|layer| layer.class == class).count();
    let (slot, image) = (layout.slot.slot_bytes().get(), layout.image.image_bytes().get());
    let facts = json!({
        "dense_layers": of(LayerClass::Dense),
        "csa_layers": of(LayerClass::Csa),
        "hca_layers": of(LayerClass::Hca),
        "draft_window_layers": of(LayerClass::Draft),
        "ring": geometry.ring(),
        "image": layout.image.rule.name(),
        "page_unit_bytes": layout.page.page_bytes().get(),
        "slot_bytes": slot,
        "image_bytes": image,
        "image_share_of_slot": (image as f64 / slot as f64 * 1e4).round() / 1e4,
        "units_per_checkpoint": layout.units_per_checkpoint().get(),
        "kv_tokens_displaced": u64::from(layout.units_per_checkpoint().get())
            * u64::from(geometry.options().block.get()),
        "spans": plan.spans().len(),
        "tiles_4k": plan.tiles(TILE_BYTES).count(),
        "layout_id": layout.id.as_str(),
    });
    let Value::Object(mut facts) = facts else { unreachable!("an object literal") };
    if let (Some(memory), Some(max_seqs)) = (args.memory, args.max_seqs) {
        let capacity = geometry
            .capacity(Budget { memory: memory.0, max_seqs })
            .context(FlagError("--memory and --max-seqs".to_owned()))?;
        facts.insert("slots".into(), capacity.slots.into());
        facts.insert("pages".into(), capacity.pages.get().into());
        facts.insert("images".into(), capacity.images.into());
        facts.insert("tokens".into(), capacity.tokens.into());
        facts.insert("all_slots_bytes".into(), capacity.slot_bytes.get().into());
        facts.insert("all_pages_bytes".into(), capacity.page_bytes.get().into());
        facts.insert("unused_bytes".into(), capacity.unused.get().into());
    }
    Ok(facts)
}

/// The geometry of a published model, laid out as the flags say.
pub(crate) fn known(
    model: ModelName,
    layout: LayoutArgs,
    block: BlockSize,
) -> Result<Dsv4Geometry> {
    let misfit = || FlagError("the model and the options do not fit together".to_owned());
    Dsv4Geometry::new(&preset(model), &options(layout, block)).with_context(misfit)
}

fn options(layout: LayoutArgs, block: BlockSize) -> CacheOptions {
    CacheOptions {
        kv: layout.kv.into(),
        indexer: layout.indexer.into(),
        draft_tokens: layout.draft_tokens,
        block,
        dcp_world_size: 1,
        image: layout.image.into(),
    }
}

fn preset(model: ModelName) -> CacheConfig {
    match model {
        ModelName::V4Pro => CacheConfig::v4_pro(),
        ModelName::V4Flash => CacheConfig::v4_flash(),
        ModelName::V4FlashDspark => CacheConfig::v4_flash_dspark(),
        ModelName::Mini => CacheConfig::mini(),
    }
}

impl From<Image> for ImageRule {
    fn from(image: Image) -> Self {
        match image {
            Image::Whole => Self::Whole,
            Image::Carried => Self::Carried,
            Image::Live => Self::Live,
        }
    }
}

impl From<Kv> for KvFormat {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::Fp8 => Self::Fp8,
            Kv::Bf16 => Self::Bf16,
            Kv::F32 => Self::F32,
        }
    }
}

impl From<Indexer> for IndexerFormat {
    fn from(indexer: Indexer) -> Self {
        match indexer {
            Indexer::Fp8 => Self::Fp8,
            Indexer::Fp4 => Self::Fp4,
            Indexer::Bf16 => Self::Bf16,
            Indexer::F32 => Self::F32,
        }
    }
}
