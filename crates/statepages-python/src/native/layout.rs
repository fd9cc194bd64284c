//! Layouts and plans: where bytes lie, and where an image is cut.

use numpy::PyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use statepages_copy::{CopyPlan, Span, TILE_BYTES};
use statepages_page::{
    Bytes, ImageLayout, ImageRule, LayoutId, PageLayout, Plane, Region, RingRun, Segment,
    SlotLayout, StateLayout,
};

use super::error::value_error;
use super::runtime::PyCheckpointSpec;

/// Pages, slots and images: all that the data plane needs to know.
#[pyclass(name = "StateLayout", module = "statepages", frozen)]
pub(crate) struct PyStateLayout {
    pub(crate) layout: StateLayout,
}

/// Rows of a ring, carried in the order of positions. Sizes in bytes.
#[pyclass(name = "RingRun", module = "statepages", frozen)]
pub(crate) struct PyRingRun {
    plane: u16,
    run: RingRun,
}

#[pymethods]
impl PyRingRun {
    #[new]
    #[pyo3(signature = (plane, *, rows, ring, stride, outer, inner, row_bytes, offset))]
    #[expect(clippy::too_many_arguments, reason = "named in Python")]
    const fn new(
        plane: u16,
        rows: u32,
        ring: u32,
        stride: u32,
        outer: u64,
        inner: u64,
        row_bytes: u32,
        offset: u64,
    ) -> Self {
        Self { plane, run: RingRun { rows, ring, stride, outer, inner, row_bytes, offset } }
    }
}

#[pymethods]
impl PyStateLayout {
    /// `regions` and `planes` are `(name, bytes)`; `segments` are `(plane, offset, bytes)` or
    /// `RingRun`, whole planes where they are left out.
    #[new]
    #[pyo3(signature = (id, *, regions, planes, segments=None, rule="whole"))]
    fn new(
        id: &str,
        regions: Vec<(String, u64)>,
        planes: Vec<(String, u64)>,
        segments: Option<Vec<Bound<'_, PyAny>>>,
        rule: &str,
    ) -> PyResult<Self> {
        let id = LayoutId::new(id).ok_or_else(|| value_error("id: expected a text, got ''"))?;
        let region = |(name, len)| Region { name, len: Bytes::new(len) };
        let page = PageLayout::new(regions.into_iter().map(region).collect());
        let plane = |(name, len)| Plane { name, len: Bytes::new(len) };
        let slot = SlotLayout::new(planes.into_iter().map(plane).collect()).map_err(value_error)?;
        let segments = match segments {
            None => (0u16..)
                .zip(slot.planes())
                .map(|(plane, p)| Segment::Fixed { plane, offset: 0, len: p.len.get() })
                .collect(),
            Some(segments) => segments.iter().map(segment).collect::<PyResult<_>>()?,
        };
        let image = ImageLayout::new(image_rule(rule)?, segments, &slot).map_err(value_error)?;
        Ok(Self { layout: StateLayout { id, page: page.map_err(value_error)?, slot, image } })
    }

    #[getter]
    fn id(&self) -> &str {
        self.layout.id.as_str()
    }

    #[getter]
    fn rule(&self) -> &str {
        self.layout.image.rule.name()
    }

    #[getter]
    fn page_unit_bytes(&self) -> u64 {
        self.layout.page.page_bytes().get()
    }

    #[getter]
    fn slot_bytes(&self) -> u64 {
        self.layout.slot.slot_bytes().get()
    }

    #[getter]
    fn image_bytes(&self) -> u64 {
        self.layout.image.image_bytes().get()
    }

    #[getter]
    fn units_per_checkpoint(&self) -> u32 {
        self.layout.units_per_checkpoint().get()
    }

    #[getter]
    fn regions(&self) -> Vec<(String, u64)> {
        let regions = self.layout.page.regions().iter();
        regions.map(|region| (region.name.clone(), region.len.get())).collect()
    }

    #[getter]
    fn planes(&self) -> Vec<(String, u64)> {
        let planes = self.layout.slot.planes().iter();
        planes.map(|plane| (plane.name.clone(), plane.len.get())).collect()
    }

    /// Earliest boundary of an image: positions that it carries before it.
    #[getter]
    fn rows_before_boundary(&self) -> u32 {
        let rows = self.layout.image.segments().iter().map(|segment| match segment {
            Segment::Fixed { .. } => 0,
            Segment::Ring { run, .. } => run.rows,
        });
        rows.max().unwrap_or(0)
    }

    /// The geometry that a runner and an engine agree on.
    fn spec(&self) -> PyResult<PyCheckpointSpec> {
        PyCheckpointSpec::of(&self.layout)
    }

    fn __repr__(&self) -> String {
        let (page, slot, image) = (self.page_unit_bytes(), self.slot_bytes(), self.image_bytes());
        format!(
            "StateLayout(id={:?}, page_unit_bytes={page}, slot_bytes={slot}, image_bytes={image})",
            self.id()
        )
    }
}

fn segment(given: &Bound<'_, PyAny>) -> PyResult<Segment> {
    if let Ok(ring) = given.cast::<PyRingRun>() {
        let ring = ring.get();
        return Ok(Segment::Ring { plane: ring.plane, run: ring.run });
    }
    let fixed = given.extract::<(u16, u64, u64)>().map_err(|_| {
        PyTypeError::new_err("segments: expected (plane, offset, bytes) or RingRun")
    })?;
    Ok(Segment::Fixed { plane: fixed.0, offset: fixed.1, len: fixed.2 })
}

pub(crate) fn image_rule(name: &str) -> PyResult<ImageRule> {
    let rules = [ImageRule::Whole, ImageRule::Carried, ImageRule::Live];
    rules.into_iter().find(|rule| rule.name() == name).ok_or_else(|| {
        value_error(format!("image rule: expected whole, carried or live, got {name:?}"))
    })
}

/// The spans of a layout's images: cut once, for both directions and every boundary.
#[pyclass(name = "CopyPlan", module = "statepages", frozen)]
pub(crate) struct PyCopyPlan {
    plan: CopyPlan,
}

type Longs<'py> = Bound<'py, PyArray1<i64>>;

#[pymethods]
impl PyCopyPlan {
    #[new]
    fn new(layout: &PyStateLayout, py: Python<'_>) -> Self {
        Self { plan: py.detach(|| CopyPlan::new(&layout.layout)) }
    }

    #[getter]
    fn num_spans(&self) -> usize {
        self.plan.spans().len()
    }

    /// Columns `segment, segment_offset, unit, region, region_offset, length`, int64.
    fn spans<'py>(&self, py: Python<'py>) -> [Longs<'py>; 6] {
        let column = |of: fn(&Span) -> i64| {
            PyArray1::from_vec(py, self.plan.spans().iter().map(of).collect())
        };
        [
            column(|span| i64::from(span.segment)),
            column(|span| span.segment_offset as i64),
            column(|span| i64::from(span.unit)),
            column(|span| i64::from(span.region)),
            column(|span| span.region_offset as i64),
            column(|span| span.len as i64),
        ]
    }

    /// Columns `span, start, length` of tiles of `tile` bytes, int64.
    #[pyo3(signature = (tile=TILE_BYTES))]
    fn tiles<'py>(&self, tile: u64, py: Python<'py>) -> PyResult<[Longs<'py>; 3]> {
        if tile == 0 {
            return Err(value_error("tile: expected at least 1 byte, got 0"));
        }
        let tiles: Vec<_> = self.plan.tiles(tile).collect();
        Ok([
            PyArray1::from_vec(py, tiles.iter().map(|tile| i64::from(tile.span)).collect()),
            PyArray1::from_vec(py, tiles.iter().map(|tile| tile.start as i64).collect()),
            PyArray1::from_vec(py, tiles.iter().map(|tile| tile.len as i64).collect()),
        ])
    }
}
