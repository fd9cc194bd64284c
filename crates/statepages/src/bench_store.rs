//! `statepages bench store`: what the control plane's operations cost, by pool size.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;
use serde_json::json;
use statepages_sim::{Row, bench_store};

use crate::args::BenchStoreArgs;
use crate::given::FlagError;

pub(crate) fn run(args: &BenchStoreArgs) -> Result<()> {
    let begun = Instant::now();
    let now = || begun.elapsed().as_nanos() as u64;
    let mut rows = Vec::new();
    for &pages in &args.units {
        let units = args.units_per_checkpoint;
        let measured = bench_store(pages, units, &now).with_context(|| {
            FlagError(format!("--units {pages} --units-per-checkpoint {units}"))
        })?;
        rows.extend(measured);
    }
    if let Some(path) = &args.plot {
        plot(path, &rows).with_context(|| format!("cannot draw {}", path.display()))?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| json!({"op": row.op, "pool_pages": row.pool_pages, "ns": row.ns}))
            .collect();
        writeln!(out, "{}", json!({ "rows": rows }))?;
    } else {
        for Row { op, pool_pages, ns } in &rows {
            writeln!(out, "{op:18} {pool_pages:>9} pages {ns:>9.1} ns")?;
        }
    }
    Ok(())
}

/// Cost against pool size, both axes logarithmic, one line per operation.
fn plot(path: &Path, rows: &[Row]) -> Result<()> {
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for Row { op, pool_pages, ns } in rows {
        lines.entry(op).or_default().push((f64::from(*pool_pages), ns.max(0.1)));
    }
    let pages = rows.iter().map(|row| f64::from(row.pool_pages));
    let (least, most) = pages.fold((f64::MAX, 1.0), |(a, b), x| (x.min(a), x.max(b)));
    let area = SVGBackend::new(path, (900, 560)).into_drawing_area();
    let failed = |error: DrawingAreaErrorKind<_>| anyhow!("{error}");
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d((least * 0.8..most * 8.0).log_scale(), (0.5..20_000.0).log_scale())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("pages of the pool")
        .y_desc("nanoseconds per operation")
        .draw()
        .map_err(failed)?;
    for (index, (op, points)) in lines.into_iter().enumerate() {
        let colour = Palette99::pick(index).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, colour))
            .map_err(failed)?
            .label(op)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)?;
    Ok(())
}
