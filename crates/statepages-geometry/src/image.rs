//! Which bytes of a slot an image holds, by rule.
//!
//! | rule | state fields | window rows |
//! | --- | --- | --- |
//! | `whole` | all bytes of every plane | |
//! | `carried` | whole fields that a resumer may read | every ring row, by ring position |
//! | `live` | the rows and columns that it does read, in position order | the window, in position order |
//!
//! A boundary is a multiple of every ratio, so the first HCA pool after it starts at the boundary:
//! HCA fields are in neither narrow rule. The first CSA pool reads one ratio of rows before it, and
//! of these the half of the columns that stands for the previous block.

use statepages_page::{ImageLayout, ImageRule, LayoutError, RingRun, Segment, SlotLayout};

use crate::field::FieldPlace;
use crate::geometry::{Parts, RowClass};

/// The segments of the options' rule. `classes` come in the order of a slot's entry.
pub(crate) fn image_layout(
    parts: &Parts<'_>,
    classes: [&RowClass; 3],
    slot: &SlotLayout,
) -> Result<ImageLayout, LayoutError> {
    let planes = 0..slot.planes().len() as u16;
    let segments = match parts.options.image {
        ImageRule::Whole => planes
            .zip(slot.planes())
            .map(|(plane, p)| Segment::Fixed { plane, offset: 0, len: p.len.get() })
            .collect(),
        ImageRule::Carried => planes.flat_map(|plane| carried(parts, classes, plane)).collect(),
        ImageRule::Live => planes.flat_map(|plane| live(parts, classes, plane)).collect(),
    };
    ImageLayout::new(parts.options.image, segments, slot)
}

fn fields_of<'a>(parts: &Parts<'a>, plane: u16) -> impl Iterator<Item = &'a FieldPlace> {
    parts.fields.iter().filter(move |place| place.plane == usize::from(plane))
}

/// Half-open byte ranges of one plane, ascending; ranges that touch are merged.
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// # Panics
    /// Where the range starts before the last one ends: its bytes would be counted twice.
    fn push(&mut self, start: u64, end: u64) {
        match self.0.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            Some(last) if last.1 > start => panic!("image range {start} overlaps {last:?}"),
            _ => self.0.push((start, end)),
        }
    }
}

fn carried(parts: &Parts<'_>, classes: [&RowClass; 3], plane: u16) -> Vec<Segment> {
    let mut ranges = Ranges(Vec::new());
    let mut open: Option<(u64, u64)> = None;
    for place in fields_of(parts, plane) {
        // Neighbouring carried fields are one run; the padding between them rides along.
        open = match (place.live, open) {
            (Some(_), Some((start, _))) => Some((start, place.end())),
            (Some(_), None) => Some((place.offset, place.end())),
            (None, Some((start, end))) => {
                ranges.push(start, end);
                None
            }
            (None, None) => None,
        };
    }
    if let Some((start, end)) = open {
        ranges.push(start, end);
    }
    let width = parts.widths[usize::from(plane)];
    let ring = parts.config.sliding_window + parts.options.draft_tokens;
    let mut rows = |first: u64, count: u64| {
        let start = (parts.arena_rows + first) * width;
        ranges.push(start, start + count * width);
    };
    for class in classes {
        let (stride, layers) = (u64::from(class.stride), u64::from(class.layers));
        if layers == 0 {
            continue;
        }
        // Whole stride groups leave no hole between layers; a last partial group leaves one behind
        // each of them.
        let (groups, rest) = (u64::from(ring) / stride, u64::from(ring) % stride);
        if groups > 0 {
            rows(class.entry_offset, groups * layers * stride);
        }
        if rest > 0 {
            for layer in 0..layers {
                rows(class.entry_offset + (groups * layers + layer) * stride, rest);
            }
        }
    }
    let ranges = ranges.0.into_iter();
    ranges.map(|(start, end)| Segment::Fixed { plane, offset: start, len: end - start }).collect()
}

fn live(parts: &Parts<'_>, classes: [&RowClass; 3], plane: u16) -> Vec<Segment> {
    let fields = fields_of(parts, plane).flat_map(|place| {
        let rings = place.live.map(|live| {
            (0..place.layers).map(move |layer| RingRun {
                rows: live.rows,
                ring: place.ring,
                stride: place.ring,
                outer: 0,
                inner: place.row_bytes,
                row_bytes: live.row_bytes as u32,
                offset: place.offset + u64::from(layer) * place.ring_bytes(),
            })
        });
        rings.into_iter().flatten()
    });
    let width = parts.widths[usize::from(plane)];
    let windows = classes.into_iter().flat_map(|class| {
        let (stride, layers) = (u64::from(class.stride), u64::from(class.layers));
        (0..layers).map(move |layer| RingRun {
            rows: parts.config.sliding_window,
            ring: parts.config.sliding_window + parts.options.draft_tokens,
            stride: class.stride,
            outer: layers * stride * width,
            inner: width,
            row_bytes: width as u32,
            offset: (parts.arena_rows + class.entry_offset + layer * stride) * width,
        })
    });
    fields.chain(windows).map(|run| Segment::Ring { plane, run }).collect()
}
