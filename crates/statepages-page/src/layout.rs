//! Where bytes lie: regions of a page, planes of a slot, segments of a checkpoint image.
//!
//! Two ordered byte streams meet in a checkpoint. The *image stream* is the concatenation of an
//! [`ImageLayout`]'s segments, read from a slot. The *unit stream* is, for each unit in canonical
//! order, the concatenation of a [`PageLayout`]'s regions. Byte `i` of the one is byte `i` of the
//! other; the tail of the last unit is unused.

use std::fmt;
use std::sync::Arc;

use crate::{Boundary, Bytes, Pages};

/// Every offset and length of a layout is a multiple of this, so that copies may move 16 bytes at a
/// time. Checked when a layout is built.
pub const MOVE_BYTES: u64 = 16;

/// Names a layout: geometry, formats, ratios and image rule. Equal ids mean equal bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutId(Arc<str>);

/// Digest of a [`LayoutId`], compared on every operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutTag(u64);

impl LayoutId {
    /// A layout id; `None` where it is empty.
    pub fn new(id: &str) -> Option<Self> {
        if id.is_empty() { None } else { Some(Self(id.into())) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The digest that operations carry.
    pub fn tag(&self) -> LayoutTag {
        let digest = blake3::hash(self.0.as_bytes());
        let (head, _) = digest.as_bytes().split_first_chunk().expect("BLAKE3 gives 32 bytes");
        LayoutTag(u64::from_le_bytes(*head))
    }
}

impl fmt::Debug for LayoutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for LayoutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LayoutTag {
    /// The raw digest.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// A digest that came over the wire.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

impl fmt::Debug for LayoutTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l{:016x}", self.0)
    }
}

/// Which bytes of a slot an image holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ImageRule {
    /// All of them, plane by plane.
    Whole,
    /// The state fields and window rows that a resumer may read, by ring position.
    Carried,
    /// The rows and columns that a resumer does read, in position order. Independent of the number
    /// of draft tokens; copies need the boundary.
    Live,
}

impl ImageRule {
    /// The name used by flags, layout ids and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Carried => "carried",
            Self::Live => "live",
        }
    }
}

/// One byte range of every page, in a buffer of its own: page `i` lies at `i * len`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// What the region holds, for messages.
    pub name: String,
    /// Bytes of one page.
    pub len: Bytes,
}

/// The regions of a page, in the order of the unit stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageLayout {
    regions: Vec<Region>,
}

/// One plane of every slot, in a buffer of its own: slot `i` lies at `i * len`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plane {
    /// What the plane holds, for messages.
    pub name: String,
    /// Bytes of one slot.
    pub len: Bytes,
}

/// The planes of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotLayout {
    planes: Vec<Plane>,
}

/// A run of equal rows in a slot, addressed by token position through a ring.
///
/// Row `i` of the run belongs to position `p = boundary - rows + i`; its ring row is `q = p mod
/// ring`, and its bytes are `[offset + (q / stride) * outer + (q mod stride) * inner, + row_bytes)`
/// of the plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingRun {
    /// Rows carried: the positions just before the boundary.
    pub rows: u32,
    /// Positions the ring holds.
    pub ring: u32,
    /// Ring rows that lie `inner` bytes apart before the next jump of `outer` bytes.
    pub stride: u32,
    /// Bytes from one stride group to the next.
    pub outer: u64,
    /// Bytes from one ring row to the next within a group.
    pub inner: u64,
    /// Bytes carried of each row.
    pub row_bytes: u32,
    /// Byte offset of ring row 0 in its plane.
    pub offset: u64,
}

impl RingRun {
    /// Byte offset, within the plane of a slot, of row `row` of the run at `boundary`.
    pub const fn row_offset(&self, row: u32, boundary: Boundary) -> u64 {
        let position = boundary.get() as i64 - self.rows as i64 + row as i64;
        let q = position.rem_euclid(self.ring as i64) as u64;
        let stride = self.stride as u64;
        self.offset + (q / stride) * self.outer + (q % stride) * self.inner
    }
}

/// One piece of the image stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// A fixed byte range of one plane.
    Fixed {
        /// Index of the plane.
        plane: u16,
        /// First byte in the plane of a slot.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Rows in position order.
    Ring {
        /// Index of the plane.
        plane: u16,
        /// The rows.
        run: RingRun,
    },
}

impl Segment {
    /// Bytes the segment contributes to the image.
    pub const fn len(&self) -> u64 {
        match self {
            Self::Fixed { len, .. } => *len,
            Self::Ring { run, .. } => run.rows as u64 * run.row_bytes as u64,
        }
    }

    /// True for a segment of no bytes, which no valid layout holds.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index of the plane it reads.
    pub const fn plane(&self) -> u16 {
        match self {
            Self::Fixed { plane, .. } | Self::Ring { plane, .. } => *plane,
        }
    }
}

/// The segments of an image, in the order of the image stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageLayout {
    /// The rule that chose the segments.
    pub rule: ImageRule,
    segments: Vec<Segment>,
}

/// A layout that cannot be copied.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LayoutError {
    /// A list that must not be empty is.
    Empty(&'static str),
    /// A size or offset is zero or no multiple of [`MOVE_BYTES`].
    Unaligned {
        /// What was measured.
        what: String,
        /// Its value in bytes.
        bytes: u64,
    },
    /// A segment leaves its plane, or names one that does not exist.
    OutOfPlane {
        /// Index of the segment.
        segment: usize,
        /// End of its furthest byte.
        end: u64,
        /// Bytes of the plane.
        plane: u64,
    },
    /// A ring run carries more rows than its ring holds, or has a zero field.
    BadRing {
        /// Index of the segment.
        segment: usize,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(what) => write!(f, "layout without {what}"),
            Self::Unaligned { what, bytes } => {
                write!(f, "{what} is {bytes} bytes; expected a positive multiple of {MOVE_BYTES}")
            }
            Self::OutOfPlane { segment, end, plane } => {
                write!(f, "image segment {segment} ends at byte {end} of a plane of {plane} bytes")
            }
            Self::BadRing { segment } => {
                write!(f, "image segment {segment} carries more rows than its ring holds, or none")
            }
        }
    }
}

impl std::error::Error for LayoutError {}

fn aligned(what: impl Into<String>, bytes: u64, zero_ok: bool) -> Result<(), LayoutError> {
    if !bytes.is_multiple_of(MOVE_BYTES) || (bytes == 0 && !zero_ok) {
        return Err(LayoutError::Unaligned { what: what.into(), bytes });
    }
    Ok(())
}

impl PageLayout {
    /// Checks and wraps the regions of a page.
    pub fn new(regions: Vec<Region>) -> Result<Self, LayoutError> {
        if regions.is_empty() {
            return Err(LayoutError::Empty("page regions"));
        }
        for region in &regions {
            aligned(format!("page region {}", region.name), region.len.get(), false)?;
        }
        Ok(Self { regions })
    }

    /// The regions, in the order of the unit stream.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> Bytes {
        Bytes::new(self.regions.iter().map(|r| r.len.get()).sum())
    }
}

impl SlotLayout {
    /// Checks and wraps the planes of a slot.
    pub fn new(planes: Vec<Plane>) -> Result<Self, LayoutError> {
        if planes.is_empty() {
            return Err(LayoutError::Empty("slot planes"));
        }
        for plane in &planes {
            aligned(format!("slot plane {}", plane.name), plane.len.get(), false)?;
        }
        Ok(Self { planes })
    }

    /// The planes.
    pub fn planes(&self) -> &[Plane] {
        &self.planes
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> Bytes {
        Bytes::new(self.planes.iter().map(|p| p.len.get()).sum())
    }
}

impl ImageLayout {
    /// Checks the segments against the planes they read, and wraps them.
    pub fn new(
        rule: ImageRule,
        segments: Vec<Segment>,
        slot: &SlotLayout,
    ) -> Result<Self, LayoutError> {
        if segments.is_empty() {
            return Err(LayoutError::Empty("image segments"));
        }
        for (index, segment) in segments.iter().enumerate() {
            let plane =
                slot.planes.get(segment.plane() as usize).map_or(0, |plane| plane.len.get());
            let end = match *segment {
                Segment::Fixed { offset, len, .. } => {
                    aligned(format!("offset of image segment {index}"), offset, true)?;
                    aligned(format!("image segment {index}"), len, false)?;
                    offset + len
                }
                Segment::Ring { run, .. } => {
                    if run.rows == 0 || run.rows > run.ring || run.stride == 0 {
                        return Err(LayoutError::BadRing { segment: index });
                    }
                    for (what, bytes, zero_ok) in [
                        ("offset", run.offset, true),
                        ("row", u64::from(run.row_bytes), false),
                        ("inner step", run.inner, true),
                        ("outer step", run.outer, true),
                    ] {
                        aligned(format!("{what} of image segment {index}"), bytes, zero_ok)?;
                    }
                    let last = |q: u64| {
                        run.offset
                            + q / u64::from(run.stride) * run.outer
                            + q % u64::from(run.stride) * run.inner
                    };
                    let furthest =
                        (0..u64::from(run.ring)).map(last).max().expect("a ring has rows");
                    furthest + u64::from(run.row_bytes)
                }
            };
            if end > plane {
                return Err(LayoutError::OutOfPlane { segment: index, end, plane });
            }
        }
        Ok(Self { rule, segments })
    }

    /// The segments, in the order of the image stream.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Bytes of one image.
    pub fn image_bytes(&self) -> Bytes {
        Bytes::new(self.segments.iter().map(Segment::len).sum())
    }
}

/// Pages, slots and images of one model on one engine: all that the data plane needs to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateLayout {
    /// Name of all of it.
    pub id: LayoutId,
    /// Regions of a page.
    pub page: PageLayout,
    /// Planes of a slot.
    pub slot: SlotLayout,
    /// Segments of an image.
    pub image: ImageLayout,
}

impl StateLayout {
    /// Units that one image takes: `ceil(image_bytes / page_unit_bytes)`.
    pub fn units_per_checkpoint(&self) -> Pages {
        self.image.image_bytes().pages_ceil(self.page.page_bytes())
    }
}
