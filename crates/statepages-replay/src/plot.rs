//! Realised tokens against pages, one line a policy.

use std::path::Path;

use plotters::prelude::*;

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its label.
    pub label: String,
    /// Pages of the pool and percent realised, by pages.
    pub points: Vec<(u32, f64)>,
}

/// What cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {path}: {what}")]
pub struct PlotError {
    path: String,
    what: String,
}

/// Draws an SVG.
pub fn plot(path: &Path, title: &str, lines: &[Line]) -> Result<(), PlotError> {
    draw(path, title, lines)
        .map_err(|error| PlotError { path: path.display().to_string(), what: error.to_string() })
}

fn draw(path: &Path, title: &str, lines: &[Line]) -> Result<(), Box<dyn std::error::Error>> {
    let pages = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.0));
    let (least, most) = (pages().min().unwrap_or(0), pages().max().unwrap_or(1));
    let margin = ((most - least) / 20).max(1);
    let area = SVGBackend::new(path, (900, 520)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d(
            f64::from(least.saturating_sub(margin))..f64::from(most + margin),
            0.0..100.0,
        )
        .map_err(|error| error.to_string())?;
    chart
        .configure_mesh()
        .x_desc("pages of the pool")
        .x_label_formatter(&|pages| format!("{pages:.0}"))
        .y_desc("realised, percent of prompt tokens")
        .draw()
        .map_err(|error| error.to_string())?;
    for (index, line) in lines.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let points = || line.points.iter().map(|&(pages, percent)| (f64::from(pages), percent));
        let series = LineSeries::new(points(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(series)
            .map_err(|error| error.to_string())?
            .label(&line.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()
        .map_err(|error| error.to_string())?;
    area.present().map_err(|error| error.to_string())?;
    Ok(())
}
