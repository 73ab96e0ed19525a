//! Pictures of a comparison, as SVG.

use plotters::prelude::*;

use crate::compare::{Comparison, Entry};
use crate::measured::Measured;

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("drawing the comparison: {0}")]
pub struct PictureError(#[source] Box<dyn std::error::Error + Send + Sync>);

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> PictureError {
    PictureError(error.into())
}

const WIDTH: u32 = 1000;
const ORIGINAL: RGBColor = RGBColor(150, 150, 150);
const LAID_OUT: RGBColor = RGBColor(31, 119, 180);

/// A caption, and what is shown.
type Panel = (&'static str, fn(&Entry) -> f64);

/// Each kind of event, for each layout, relative to the program as it is; what decides on a real processor,
/// where that was measured.
///
/// # Errors
/// If the drawing library fails.
pub fn comparison_svg(comparison: &Comparison) -> Result<String, PictureError> {
    let panels: [Panel; 6] = [
        ("cost", |e| e.cost),
        ("L1i misses", |e| e.counts.l1i as f64),
        ("L2 misses of code", |e| e.counts.l2 as f64),
        ("iTLB misses", |e| e.counts.itlb as f64),
        ("BTB misses", |e| e.counts.btb as f64),
        ("taken branches", |e| e.counts.taken as f64),
    ];
    let entries = &comparison.entries;
    let of = |value: fn(&Entry) -> f64| entries.iter().map(value).collect::<Vec<f64>>();
    let mut shown: Vec<(String, Vec<f64>)> =
        panels.iter().map(|(name, value)| ((*name).to_owned(), of(*value))).collect();
    shown.extend(comparison.measured.iter().filter_map(|measured| on_processor(measured, entries)));
    let rows = shown.len().div_ceil(2);
    let mut svg = String::new();
    {
        let height = 60 + rows as u32 * (70 + 18 * entries.len() as u32);
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let title = format!("Relative to the program as it is; {}", comparison.machine.name);
        let root = root.titled(&title, ("sans-serif", 18)).map_err(failed)?;
        for (area, (name, values)) in root.split_evenly((rows, 2)).iter().zip(&shown) {
            bars(area, name, entries, values)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// What decides on the real processor, for each entry; those that were not run have nothing.
fn on_processor(measured: &Measured, entries: &[Entry]) -> Option<(String, Vec<f64>)> {
    let event = measured.events.first()?;
    let ratio = |name: &str| {
        let layout = measured.layouts.iter().find(|layout| layout.name == name);
        layout.and_then(|layout| layout.ratios.first()).map_or(0.0, |ratio| ratio.median)
    };
    let rest = entries.iter().skip(1).map(|entry| ratio(&entry.name));
    Some((format!("measured: {event}"), std::iter::once(1.0).chain(rest).collect()))
}

/// Pixels that the names need, within what leaves room for bars.
fn label_width(entries: &[Entry]) -> u32 {
    let longest = entries.iter().map(|e| e.name.chars().count()).max().unwrap_or(0);
    (7 * longest as u32 + 10).clamp(130, 300)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn bars(area: &Area<'_>, name: &str, entries: &[Entry], values: &[f64]) -> Result<(), PictureError> {
    let base = values.first().copied().unwrap_or(1.0).max(f64::MIN_POSITIVE);
    let shares: Vec<f64> = values.iter().map(|value| (value / base).min(4.0)).collect();
    let most = shares.iter().copied().fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 14))
        .margin(6)
        .y_label_area_size(label_width(entries))
        .x_label_area_size(18)
        .build_cartesian_2d(0.0..most * 1.1, (0..entries.len().saturating_sub(1)).into_segmented())
        .map_err(failed)?;
    let label = |row: &SegmentValue<usize>| match row {
        SegmentValue::CenterOf(i) => {
            entries.len().checked_sub(i + 1).map_or(String::new(), |k| entries[k].name.clone())
        }
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(entries.len())
        .y_label_formatter(&label)
        .draw()
        .map_err(failed)?;
    let bar = |(i, share): (usize, &f64)| {
        let row = entries.len() - 1 - i;
        let colour = if i == 0 { ORIGINAL } else { LAID_OUT };
        let over = if i == 0 { SegmentValue::Last } else { SegmentValue::Exact(row + 1) };
        let under = SegmentValue::Exact(row);
        let mut bar = Rectangle::new([(0.0, under), (*share, over)], colour.filled());
        bar.set_margin(2, 2, 0, 0);
        bar
    };
    chart.draw_series(shares.iter().enumerate().map(bar)).map_err(failed)?;
    Ok(())
}

/// Hot lines of each set of the instruction cache, one panel a layout; the line is what a set can hold.
///
/// # Errors
/// If the drawing library fails.
pub fn occupancy_svg(comparison: &Comparison) -> Result<String, PictureError> {
    let entries = &comparison.entries;
    let most = entries.iter().flat_map(|e| &e.occupancy.lines).copied().max().unwrap_or(1).max(1);
    let mut svg = String::new();
    {
        let root =
            SVGBackend::with_string(&mut svg, (WIDTH, 130 * entries.len() as u32 + 40)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let title = "Hot lines (90 % of the executed bytes) in each set of the instruction cache";
        let root = root.titled(title, ("sans-serif", 18)).map_err(failed)?;
        for (area, entry) in root.split_evenly((entries.len(), 1)).iter().zip(entries) {
            sets(area, entry, most)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn sets(area: &Area<'_>, entry: &Entry, most: u32) -> Result<(), PictureError> {
    let o = &entry.occupancy;
    let caption = format!("{}: {} hot lines, {} beyond what fits", entry.name, o.total(), o.excess());
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 13))
        .margin(4)
        .y_label_area_size(40)
        .x_label_area_size(16)
        .build_cartesian_2d(0..o.lines.len() as u32, 0..most + 1)
        .map_err(failed)?;
    chart.configure_mesh().disable_x_mesh().y_labels(4).draw().map_err(failed)?;
    let bar = |(set, &lines): (usize, &u32)| {
        Rectangle::new([(set as u32, 0), (set as u32 + 1, lines)], LAID_OUT.filled())
    };
    chart.draw_series(o.lines.iter().enumerate().map(bar)).map_err(failed)?;
    let ways = o.ways as u32;
    let fits = PathElement::new([(0, ways), (o.lines.len() as u32, ways)], RED);
    chart.draw_series([fits]).map_err(failed)?;
    Ok(())
}
