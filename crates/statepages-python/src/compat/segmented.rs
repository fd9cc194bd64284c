//! The planner of `paged_state_copy`: spans, tiles and descriptors as int64 arrays.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use statepages_copy::{CutError, Stream, TILE_BYTES, cut};

type Longs<'py> = Bound<'py, PyArray1<i64>>;
type Spans<'py> = (
    Longs<'py>,
    Longs<'py>,
    Longs<'py>,
    Longs<'py>,
    Longs<'py>,
    Bound<'py, PyArray1<i32>>,
    Longs<'py>,
);

/// Cuts two byte streams: `(src_seg, src_off, dst_seg, dst_off, length, span_of_tile, tile_start)`.
#[pyfunction]
#[pyo3(name = "_segmented_spans")]
pub(crate) fn segmented_spans(
    py: Python<'_>,
    src_sizes: Vec<i64>,
    dst_sizes: Vec<i64>,
    total_bytes: i64,
) -> PyResult<Spans<'_>> {
    let total = u64::try_from(total_bytes).map_err(|_| {
        PyValueError::new_err(format!("total_bytes must be non-negative, got {total_bytes}"))
    })?;
    let sizes = |sizes: Vec<i64>| -> PyResult<Vec<u64>> {
        let checked = sizes.into_iter().map(|size| u64::try_from(size).ok().filter(|&s| s > 0));
        let checked: Option<Vec<u64>> = checked.collect();
        checked.ok_or_else(|| {
            PyValueError::new_err("a segmented stream cannot contain empty segments")
        })
    };
    let (source, target) = (sizes(src_sizes)?, sizes(dst_sizes)?);
    let cuts = py.detach(|| cut(&source, &target, total)).map_err(|error| {
        let message = match error {
            CutError::ShortStream { stream: Stream::Source, .. } => {
                "source segmented stream is shorter than the copy"
            }
            CutError::ShortStream { stream: Stream::Target, .. } => {
                "destination segmented stream is shorter than the copy"
            }
            _ => "a segmented stream cannot contain empty segments",
        };
        PyValueError::new_err(format!("{message}: {error}"))
    })?;
    let column = |of: fn(&statepages_copy::Cut) -> i64| {
        PyArray1::from_vec(py, cuts.iter().map(of).collect())
    };
    let (mut spans, mut starts) = (Vec::new(), Vec::new());
    for (span, cut) in cuts.iter().enumerate() {
        for tile in 0..cut.len.div_ceil(TILE_BYTES) {
            spans.push(span as i32);
            starts.push((tile * TILE_BYTES) as i64);
        }
    }
    Ok((
        column(|cut| cut.source as i64),
        column(|cut| cut.source_offset as i64),
        column(|cut| cut.target as i64),
        column(|cut| cut.target_offset as i64),
        column(|cut| cut.len as i64),
        PyArray1::from_vec(py, spans),
        PyArray1::from_vec(py, starts),
    ))
}

/// Which columns of a descriptor the addresses of the two streams go to.
#[derive(Clone, Copy)]
struct Columns {
    source: usize,
    target: usize,
}

/// Fills rows `(source, destination, length)`, copies back to back.
#[pyfunction]
#[pyo3(name = "_segmented_descriptor")]
pub(crate) fn segmented_descriptor(
    spans: [Longs<'_>; 5],
    segments: [usize; 2],
    out: &Bound<'_, PyAny>,
    bases: [Bound<'_, PyAny>; 2],
    forward: bool,
) -> PyResult<()> {
    let names = ["src_bases", "dst_bases"];
    let out = matrix(out, "out")?;
    let mut copies = None;
    let mut read = Vec::new();
    for ((base, name), segments) in bases.iter().zip(names).zip(segments) {
        let base = matrix(base, name)?;
        let (rows, columns) = (base.shape()[0], base.shape()[1]);
        let wanted = *copies.get_or_insert(rows);
        if rows != wanted || columns != segments {
            return Err(PyValueError::new_err(format!(
                "{name}: expected shape ({wanted}, {segments}), got ({rows}, {columns})"
            )));
        }
        read.push(base.readonly());
    }
    let copies = copies.unwrap_or(0);
    let count = spans[0].len();
    if out.shape() != [copies * count, 3] {
        return Err(PyValueError::new_err(format!(
            "out: expected shape ({}, 3), got ({}, {})",
            copies * count,
            out.shape()[0],
            out.shape()[1]
        )));
    }
    let mut out = out.try_readwrite().map_err(|error| {
        PyValueError::new_err(format!("out: expected a writable array of its own: {error}"))
    })?;
    let mut out = out.as_array_mut();
    let mut columns_of_plan = [const { Vec::new() }; 5];
    for (read, column) in columns_of_plan.iter_mut().zip(&spans) {
        *read = column.to_vec()?;
    }
    let [src_seg, src_off, dst_seg, dst_off, length] = columns_of_plan;
    let columns =
        if forward { Columns { source: 0, target: 1 } } else { Columns { source: 1, target: 0 } };
    let (sources, targets) = (read[0].as_array(), read[1].as_array());
    for copy in 0..copies {
        for span in 0..count {
            let row = copy * count + span;
            out[[row, columns.source]] =
                sources[[copy, src_seg[span] as usize]].wrapping_add(src_off[span]);
            out[[row, columns.target]] =
                targets[[copy, dst_seg[span] as usize]].wrapping_add(dst_off[span]);
            out[[row, 2]] = length[span];
        }
    }
    Ok(())
}

fn matrix<'a, 'py>(
    array: &'a Bound<'py, PyAny>,
    name: &str,
) -> PyResult<&'a Bound<'py, PyArray2<i64>>> {
    array.cast::<PyArray2<i64>>().map_err(|_| {
        PyValueError::new_err(format!("{name}: expected a two-dimensional int64 array"))
    })
}
