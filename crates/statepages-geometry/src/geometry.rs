//! Derivation of a DSV4 cache's layout, and the address of everything a forward reads or writes.
//!
//! A *row* is one token's KV in one layer; it has the same row number in every plane of the KV
//! format. A page region per plane holds the *envelope* of a block:
//!
//! | rows of a page | holds |
//! | --- | --- |
//! | `[0, n_hca * block/128)` | HCA layers, each `block/128` rows |
//! | `[.., + n_csa * block/4)` | CSA layers, each `block/4` rows |
//!
//! and a region per CSA layer holds its indexer rows. A slot has as many rows in every plane:
//!
//! | rows of a slot | holds |
//! | --- | --- |
//! | `[0, arena_rows)` | state fields, each in one plane, by byte offset |
//! | `[.., + entry_rows)` | window rings: dense layers, then HCA, then CSA |
//! | `[.., slot_rows)` | padding |
//!
//! Window rows of a class interleave its layers: ring row `q` of layer `i` of `n` is row
//! `(q / s) * (n * s) + i * s + q mod s` of the class, where the stride `s` is the layer's rows in
//! an envelope (dense: the ring). A kernel can so address pages and windows by one list of rows.

use std::ops::Range;

use statepages_page::{
    Bytes, LayoutId, PageLayout, Plane, Region, SlotLayout, StateLayout, Tokens,
};

use crate::config::{CSA_RATIO, HCA_RATIO, validate};
use crate::field::{Arena, ClassCounts, FIELD_ALIGN, FieldPlace, arrange, lcm};
use crate::image::image_layout;
use crate::{CacheConfig, CacheOptions, GeometryError, IndexerFormat, KvFormat, StateField};

/// What a layer keeps, beside its window.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum LayerClass {
    /// Nothing: window only.
    Dense,
    /// One compressed entry per 128 tokens.
    Hca,
    /// One compressed entry per 4 tokens, and the indexer's row of it.
    Csa,
    /// Nothing, and the window is a state field: a DSpark draft layer.
    Draft,
}

/// A layer's place among the layers of its class; what addresses are asked for by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct LayerCache {
    /// What the layer keeps.
    pub class: LayerClass,
    /// Number of layers of the class before this one.
    pub index: u32,
}

/// Bytes of a request's pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageBytes {
    /// Index into the request's page table.
    pub block: usize,
    /// Region of the page.
    pub region: usize,
    /// Bytes of the region.
    pub bytes: Range<usize>,
}

/// Bytes of a request's slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotBytes {
    /// Plane of the slot.
    pub plane: usize,
    /// Bytes of the plane.
    pub bytes: Range<usize>,
}

/// An indexer row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexerRow {
    /// The columns.
    pub data: PageBytes,
    /// The scales, for formats that have some.
    pub scales: Option<PageBytes>,
}

/// The rows of one class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowClass {
    pub(crate) layers: u32,
    /// Ring rows of a layer that are adjacent; also its rows in an envelope, unless dense.
    pub(crate) stride: u32,
    /// First row in the window entry of a slot.
    pub(crate) entry_offset: u64,
    /// First row in the envelope of a page.
    envelope_offset: u64,
}

impl RowClass {
    /// Row of a ring position, counted from the entry's first row.
    fn entry_row(&self, layer: u32, ring_row: u64) -> u64 {
        let (stride, layers) = (u64::from(self.stride), u64::from(self.layers));
        self.entry_offset
            + ring_row / stride * (layers * stride)
            + u64::from(layer) * stride
            + ring_row % stride
    }

    /// Rows of the entry: up to the last ring row of the last layer.
    fn entry_rows(&self, ring: u32) -> u64 {
        match self.layers {
            0 => 0,
            layers => self.entry_row(layers - 1, u64::from(ring) - 1) + 1 - self.entry_offset,
        }
    }
}

/// Layout and addresses of one model's caches on one engine.
#[derive(Clone, Debug)]
pub struct Dsv4Geometry {
    pub(crate) config: CacheConfig,
    pub(crate) options: CacheOptions,
    layers: Vec<LayerCache>,
    pub(crate) widths: Vec<u64>,
    pub(crate) fields: Vec<FieldPlace>,
    pub(crate) arena_rows: u64,
    pub(crate) dense: RowClass,
    pub(crate) hca: RowClass,
    pub(crate) csa: RowClass,
    entry_rows: u64,
    slot_rows: u64,
    layout: StateLayout,
}

impl Dsv4Geometry {
    /// Validates and derives.
    pub fn new(config: &CacheConfig, options: &CacheOptions) -> Result<Self, GeometryError> {
        let layers = validate(config, options)?;
        let count = |class| layers.iter().filter(|layer| layer.class == class).count() as u32;
        let counts = ClassCounts {
            dense: count(LayerClass::Dense),
            hca: count(LayerClass::Hca),
            csa: count(LayerClass::Csa),
            draft: count(LayerClass::Draft),
        };
        let widths = options.kv.plane_widths(config);
        let Arena { fields, rows: arena_rows } = arrange(config, options, counts, &widths);
        let ring = config.sliding_window + options.draft_tokens;
        let block = options.block.get();
        let (hca_rows, csa_rows) = (block / HCA_RATIO, block / CSA_RATIO);
        let class = |layers, stride, entry_offset, envelope_offset| RowClass {
            layers,
            stride,
            entry_offset,
            envelope_offset,
        };
        let dense = class(counts.dense, ring, 0, 0);
        let hca = class(counts.hca, hca_rows, dense.entry_rows(ring), 0);
        let hca_envelope = u64::from(counts.hca) * u64::from(hca_rows);
        let hca_end = hca.entry_offset + hca.entry_rows(ring);
        let csa = class(counts.csa, csa_rows, hca_end, hca_envelope);
        let entry_rows = csa.entry_offset + csa.entry_rows(ring);
        let slot_rows = (arena_rows + entry_rows).next_multiple_of(slot_align(&widths, &fields));

        let page = page_layout(config, options, counts, &widths)?;
        let planes = plane_names(options.kv).zip(&widths);
        let planes = planes
            .map(|(name, width)| Plane { name: name.into(), len: Bytes::new(slot_rows * width) });
        let slot = SlotLayout::new(planes.collect())?;
        let id = layout_id(config, options);
        let partial = Parts { config, options, widths: &widths, fields: &fields, arena_rows };
        let image = image_layout(&partial, [&dense, &hca, &csa], &slot)?;
        Ok(Self {
            config: config.clone(),
            options: *options,
            layers,
            widths,
            fields,
            arena_rows,
            dense,
            hca,
            csa,
            entry_rows,
            slot_rows,
            layout: StateLayout { id, page, slot, image },
        })
    }

    /// Pages, slots and images, for the data plane.
    pub fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// The model's shape.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// The engine's choices.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// Every layer's cache, draft layers last.
    pub fn layers(&self) -> &[LayerCache] {
        &self.layers
    }

    /// Planes of the KV format: the first regions of a page and the planes of a slot.
    pub fn planes(&self) -> usize {
        self.widths.len()
    }

    /// Bytes of a KV row in a plane.
    pub fn row_bytes(&self, plane: usize) -> usize {
        self.widths[plane] as usize
    }

    /// Positions that every window ring holds: window and draft tokens.
    pub fn ring(&self) -> u32 {
        self.config.sliding_window + self.options.draft_tokens
    }

    /// Refuses an engine that may write more drafts past a boundary than the rings have slack for.
    pub fn require_ring(&self, draft_tokens: u32) -> Result<(), GeometryError> {
        let expected = u64::from(self.config.sliding_window) + u64::from(draft_tokens);
        let got = u64::from(self.ring());
        if got < expected { Err(GeometryError::RingTooSmall { expected, got }) } else { Ok(()) }
    }

    /// Rows of one block in the envelope of a page, all layers.
    pub fn envelope_rows(&self) -> u64 {
        u64::from(self.hca.layers) * u64::from(self.hca.stride)
            + u64::from(self.csa.layers) * u64::from(self.csa.stride)
    }

    /// Rows of a slot before the windows.
    pub fn arena_rows(&self) -> u64 {
        self.arena_rows
    }

    /// Rows of a slot's windows, padding between them included.
    pub fn entry_rows(&self) -> u64 {
        self.entry_rows
    }

    /// Rows of a slot.
    pub fn slot_rows(&self) -> u64 {
        self.slot_rows
    }

    /// Compressed entries of a layer in one block: 64 for CSA and 2 for HCA in a block of 256.
    ///
    /// # Panics
    /// For a layer without compressed entries.
    pub fn entries_per_block(&self, layer: LayerCache) -> u32 {
        self.compressed_class(layer).stride
    }

    /// Where a compressed entry lies in a plane. Entry `e` of a layer of ratio `r` stands for the
    /// positions `[e * r, (e + 1) * r)`.
    ///
    /// # Panics
    /// For a layer without compressed entries, or a plane that does not exist.
    pub fn compressed_row(&self, layer: LayerCache, entry: u32, plane: usize) -> PageBytes {
        let class = self.compressed_class(layer);
        let (block, row) = (entry / class.stride, entry % class.stride);
        let row = class.envelope_offset
            + u64::from(layer.index) * u64::from(class.stride)
            + u64::from(row);
        PageBytes { block: block as usize, region: plane, bytes: self.row_range(row, plane) }
    }

    /// Where the indexer's row of a compressed entry lies.
    ///
    /// # Panics
    /// For a layer that is not CSA.
    pub fn indexer_row(&self, layer: LayerCache, entry: u32) -> IndexerRow {
        assert_eq!(layer.class, LayerClass::Csa, "{layer:?} has no indexer");
        let class = self.compressed_class(layer);
        let (block, row) = ((entry / class.stride) as usize, u64::from(entry % class.stride));
        let (format, columns) = (self.options.indexer, self.config.index_head_dim);
        let region = self.planes() + layer.index as usize;
        let at = |region, base: u64, size: u64| PageBytes {
            block,
            region,
            bytes: range(base + row * size, size),
        };
        let (data, scale) = (format.data_bytes(columns), format.scale_bytes(columns));
        let scales = match format {
            IndexerFormat::Fp8 => Some(at(region, u64::from(class.stride) * data, scale)),
            IndexerFormat::Fp4 => Some(at(region + self.csa.layers as usize, 0, scale)),
            IndexerFormat::Bf16 | IndexerFormat::F32 => None,
        };
        IndexerRow { data: at(region, 0, data), scales }
    }

    /// Where the window row of a position lies in a plane. For a [`LayerClass::Draft`] layer this
    /// is a row of its state field, whatever plane was asked for.
    ///
    /// # Panics
    /// For a layer or plane that does not exist.
    pub fn window_row(&self, layer: LayerCache, position: Tokens, plane: usize) -> SlotBytes {
        let class = match layer.class {
            LayerClass::Dense => &self.dense,
            LayerClass::Hca => &self.hca,
            LayerClass::Csa => &self.csa,
            LayerClass::Draft => return self.state_row(layer, StateField::DraftWindow, position),
        };
        assert!(layer.index < class.layers, "{layer:?} does not exist");
        let q = u64::from(position.get() % self.ring());
        let row = self.arena_rows + class.entry_row(layer.index, q);
        SlotBytes { plane, bytes: self.row_range(row, plane) }
    }

    /// How many positions from this one on, itself included, have window rows that lie one behind
    /// the other in each plane.
    ///
    /// # Panics
    /// For a layer that does not exist.
    pub fn window_run(&self, layer: LayerCache, position: Tokens) -> u32 {
        let (ring, stride) = match layer.class {
            LayerClass::Draft => {
                let ring = self.state_ring(layer, StateField::DraftWindow);
                (ring, ring)
            }
            LayerClass::Dense => (self.ring(), self.dense.stride),
            LayerClass::Hca => (self.ring(), self.hca.stride),
            LayerClass::Csa => (self.ring(), self.csa.stride),
        };
        let row = position.get() % ring;
        (stride - row % stride).min(ring - row)
    }

    /// Where the state row of a position lies.
    ///
    /// # Panics
    /// For a field that the layer's class does not have, or a layer that does not exist.
    pub fn state_row(&self, layer: LayerCache, field: StateField, position: Tokens) -> SlotBytes {
        let place = self.field(layer, field);
        let base = place.offset + u64::from(layer.index) * place.ring_bytes();
        let q = u64::from(position.get() % place.ring);
        SlotBytes { plane: place.plane, bytes: range(base + q * place.row_bytes, place.row_bytes) }
    }

    /// Positions that a state field's rings hold: what a pool reads, and draft tokens.
    ///
    /// # Panics
    /// As [`Dsv4Geometry::state_row`].
    pub fn state_ring(&self, layer: LayerCache, field: StateField) -> u32 {
        self.field(layer, field).ring
    }

    fn field(&self, layer: LayerCache, field: StateField) -> &FieldPlace {
        assert_eq!(field.class(), layer.class, "{layer:?} has no field {field:?}");
        let place = self.fields.iter().find(|place| place.field == field);
        let place = place.expect("a class with layers has its fields");
        assert!(layer.index < place.layers, "{layer:?} does not exist");
        place
    }

    fn compressed_class(&self, layer: LayerCache) -> &RowClass {
        let class = match layer.class {
            LayerClass::Hca => &self.hca,
            LayerClass::Csa => &self.csa,
            LayerClass::Dense | LayerClass::Draft => {
                panic!("{layer:?} has no compressed entries")
            }
        };
        assert!(layer.index < class.layers, "{layer:?} does not exist");
        class
    }

    fn row_range(&self, row: u64, plane: usize) -> Range<usize> {
        range(row * self.widths[plane], self.widths[plane])
    }
}

impl StateField {
    /// Class of the layers that have the field.
    pub const fn class(self) -> LayerClass {
        match self {
            Self::CsaMainKv | Self::CsaMainScore | Self::CsaIndexKv | Self::CsaIndexScore => {
                LayerClass::Csa
            }
            Self::HcaMainKv | Self::HcaMainScore => LayerClass::Hca,
            Self::DraftWindow => LayerClass::Draft,
        }
    }
}

/// What an image rule looks at, before there is a [`Dsv4Geometry`].
pub(crate) struct Parts<'a> {
    pub(crate) config: &'a CacheConfig,
    pub(crate) options: &'a CacheOptions,
    pub(crate) widths: &'a [u64],
    pub(crate) fields: &'a [FieldPlace],
    pub(crate) arena_rows: u64,
}

const fn range(start: u64, len: u64) -> Range<usize> {
    start as usize..(start + len) as usize
}

/// Rows to which slots are rounded up, so that every slot starts at a multiple of [`FIELD_ALIGN`]
/// in every plane, and of a draft window row in the plane that holds them.
fn slot_align(widths: &[u64], fields: &[FieldPlace]) -> u64 {
    let to_bytes = |bytes: u64, width: u64| lcm(bytes, width) / width;
    let planes = widths.iter().map(|&width| to_bytes(FIELD_ALIGN, width));
    let windows = fields
        .iter()
        .filter(|place| place.field == StateField::DraftWindow)
        .map(|place| to_bytes(place.row_bytes, widths[place.plane]));
    planes.chain(windows).fold(2, lcm)
}

fn plane_names(kv: KvFormat) -> impl Iterator<Item = &'static str> {
    let names: &[_] = match kv {
        KvFormat::Fp8 => &["nope", "rope"],
        KvFormat::Bf16 | KvFormat::F32 => &["kv"],
    };
    names.iter().copied()
}

fn page_layout(
    config: &CacheConfig,
    options: &CacheOptions,
    counts: ClassCounts,
    widths: &[u64],
) -> Result<PageLayout, GeometryError> {
    let block = u64::from(options.block.get());
    let entries = block / u64::from(CSA_RATIO);
    let rows =
        u64::from(counts.hca) * (block / u64::from(HCA_RATIO)) + u64::from(counts.csa) * entries;
    let envelopes = plane_names(options.kv)
        .zip(widths)
        .map(|(plane, width)| Region { name: plane.into(), len: Bytes::new(rows * width) });
    let columns = config.index_head_dim;
    let data = options.indexer.data_bytes(columns);
    let scales = options.indexer.scale_bytes(columns);
    let per_layer = |what: &'static str, row: u64| {
        (0..counts.csa).map(move |layer| Region {
            name: format!("{what} {layer}"),
            len: Bytes::new(entries * row),
        })
    };
    let mut regions: Vec<Region> = envelopes.collect();
    match options.indexer {
        IndexerFormat::Fp4 => {
            regions.extend(per_layer("indexer", data));
            regions.extend(per_layer("indexer scales", scales));
        }
        IndexerFormat::Fp8 | IndexerFormat::Bf16 | IndexerFormat::F32 => {
            regions.extend(per_layer("indexer", data + scales));
        }
    }
    Ok(PageLayout::new(regions)?)
}

/// Names everything that the derivation reads, and the derivation's own revision.
fn layout_id(config: &CacheConfig, options: &CacheOptions) -> LayoutId {
    let drafts = match config.draft_layers {
        crate::DraftLayers::Mtp => "mtp",
        crate::DraftLayers::DSpark => "dspark",
    };
    let ratios: Vec<String> = config.compress_ratios.iter().map(u32::to_string).collect();
    LayoutId::new(&format!(
        "statepages-dsv4-1:block={}:window={}:drafts={}:dims={},{},{}:kv={}:indexer={}:layers={}+{}\
         {drafts}:ratios={}:image={}",
        options.block.get(),
        config.sliding_window,
        options.draft_tokens,
        config.head_dim,
        config.qk_rope_head_dim,
        config.index_head_dim,
        options.kv.name(),
        options.indexer.name(),
        config.num_hidden_layers,
        config.num_nextn_predict_layers,
        ratios.join(","),
        options.image.name(),
    ))
    .expect("the id is not empty")
}
