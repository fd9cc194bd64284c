//! State fields of a slot: the compressor rings and draft windows in front of the window rows.
//!
//! A field is `layers` rings, one behind the other; a ring is `ring` rows of `row_bytes`. Fields
//! lie in one plane each, in their order, at offsets aligned to [`FIELD_ALIGN`] or more.

use crate::config::{CSA_RATIO, CacheConfig, CacheOptions, HCA_RATIO};

/// Alignment of every field, and of every slot in every plane.
pub(crate) const FIELD_ALIGN: u64 = 256;

/// One kind of state that a layer keeps in the slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum StateField {
    /// Projections that CSA layers pool into KV entries: f32, `2 * head_dim` columns.
    CsaMainKv,
    /// Scores of [`StateField::CsaMainKv`], position embedding added.
    CsaMainScore,
    /// Projections that CSA layers pool into indexer entries: f32, `2 * index_head_dim` columns.
    CsaIndexKv,
    /// Scores of [`StateField::CsaIndexKv`], position embedding added.
    CsaIndexScore,
    /// Projections that HCA layers pool into KV entries: f32, `head_dim` columns.
    HcaMainKv,
    /// Scores of [`StateField::HcaMainKv`], position embedding added.
    HcaMainScore,
    /// Windows of DSpark draft layers: unpacked KV rows of `head_dim` columns.
    DraftWindow,
}

/// A field and where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldPlace {
    pub(crate) field: StateField,
    pub(crate) layers: u32,
    /// Positions each ring holds.
    pub(crate) ring: u32,
    pub(crate) row_bytes: u64,
    align: u64,
    /// What a resumer reads of each ring; `None` where it reads nothing.
    pub(crate) live: Option<LiveRows>,
    pub(crate) plane: usize,
    /// Offset in the plane of a slot.
    pub(crate) offset: u64,
}

/// The part of a ring that is read after a boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveRows {
    /// Positions just before the boundary.
    pub(crate) rows: u32,
    /// First bytes of each row.
    pub(crate) row_bytes: u64,
}

impl FieldPlace {
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.layers) * self.ring_bytes()
    }

    /// Bytes of one layer's ring.
    pub(crate) fn ring_bytes(&self) -> u64 {
        u64::from(self.ring) * self.row_bytes
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes()
    }
}

/// Layers of each class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassCounts {
    pub(crate) dense: u32,
    pub(crate) hca: u32,
    pub(crate) csa: u32,
    pub(crate) draft: u32,
}

/// The fields of a slot in their planes, and the rows that they take of every plane.
pub(crate) struct Arena {
    pub(crate) fields: Vec<FieldPlace>,
    pub(crate) rows: u64,
}

fn declare(config: &CacheConfig, options: &CacheOptions, counts: ClassCounts) -> Vec<FieldPlace> {
    let drafts = options.draft_tokens;
    let state = |field, layers, pool: u32, columns: u32, live| FieldPlace {
        field,
        layers,
        ring: pool + drafts,
        row_bytes: 4 * u64::from(columns),
        align: FIELD_ALIGN,
        live,
        plane: 0,
        offset: 0,
    };
    // The first pool after a boundary reaches one ratio back, and only as the previous block: the
    // first half of the columns. An HCA pool starts at the boundary and reads nothing before it.
    let csa = |field, columns: u32| {
        let live = LiveRows { rows: CSA_RATIO, row_bytes: 4 * u64::from(columns) };
        state(field, counts.csa, 2 * CSA_RATIO, 2 * columns, Some(live))
    };
    let hca = |field| state(field, counts.hca, HCA_RATIO, config.head_dim, None);
    let window_row = u64::from(config.head_dim) * options.kv.draft_column_bytes();
    let window = FieldPlace {
        row_bytes: window_row,
        align: lcm(window_row, FIELD_ALIGN),
        ..state(
            StateField::DraftWindow,
            counts.draft,
            config.sliding_window,
            config.head_dim,
            Some(LiveRows { rows: config.sliding_window, row_bytes: window_row }),
        )
    };
    let mut fields = vec![
        csa(StateField::CsaMainKv, config.head_dim),
        csa(StateField::CsaMainScore, config.head_dim),
        csa(StateField::CsaIndexKv, config.index_head_dim),
        csa(StateField::CsaIndexScore, config.index_head_dim),
        hca(StateField::HcaMainKv),
        hca(StateField::HcaMainScore),
        window,
    ];
    fields.retain(|field| field.layers > 0);
    fields
}

/// Sets every field's offset by the planes chosen so far, and returns the rows of the arena.
fn place(fields: &mut [FieldPlace], widths: &[u64]) -> u64 {
    let mut ends = vec![0u64; widths.len()];
    for field in fields {
        field.offset = ends[field.plane].next_multiple_of(field.align);
        ends[field.plane] = field.end();
    }
    let rows = ends.iter().zip(widths).map(|(end, width)| {
        let bytes = end.next_multiple_of(FIELD_ALIGN);
        bytes.div_ceil(*width)
    });
    rows.max().expect("a slot has a plane")
}

/// Writes code `code` into the fields, digit `f` being the plane of field `f`, and returns the rows
/// of the arena.
fn assign(fields: &mut [FieldPlace], widths: &[u64], code: usize) -> u64 {
    let mut rest = code;
    for field in fields.iter_mut() {
        field.plane = rest % widths.len();
        rest /= widths.len();
    }
    place(fields, widths)
}

/// Chooses a plane for every field: of all assignments the one of fewest rows, ties to the lowest
/// code.
pub(crate) fn arrange(
    config: &CacheConfig,
    options: &CacheOptions,
    counts: ClassCounts,
    widths: &[u64],
) -> Arena {
    let mut fields = declare(config, options, counts);
    let codes = widths.len().pow(fields.len() as u32);
    let best = (0..codes)
        .min_by_key(|&code| assign(&mut fields, widths, code))
        .expect("there is a first code");
    let rows = assign(&mut fields, widths, best);
    Arena { fields, rows }
}

/// Least common multiple of two positive numbers.
pub(crate) const fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
