//! A comparison as a picture: one square a pair of profiles, darker where they are less alike. SVG, nothing
//! loaded from elsewhere.

use crate::comparison::{Comparison, Table};
use crate::visible::visible_line;
use std::fmt::Write as _;

/// Side of a cell, in pixels.
const CELL: usize = 46;
/// Room for a panel's title and column numbers.
const TITLE: usize = 46;
/// Room for row numbers.
const LEFT: usize = 30;
/// Space around panels.
const GAP: usize = 28;
/// Panels side by side.
const COLUMNS: usize = 4;
/// Height of a line of the list of profiles.
const LINE: usize = 20;
/// The least width of a panel: its title has to fit.
const LEAST: usize = 250;

/// Colours from unlike to alike (viridis, five stops): equally stepped in lightness, so that they survive
/// grey printing.
const COLOURS: [[f64; 3]; 5] =
    [[68.0, 1.0, 84.0], [59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];

impl Comparison {
    /// The picture, as an SVG document.
    pub fn to_svg(&self) -> String {
        let n = self.profiles.len();
        let panel = ((n * CELL).max(LEAST) + LEFT, n * CELL + TITLE);
        let tables = self.tables();
        let rows = tables.len().div_ceil(COLUMNS);
        let width = COLUMNS * (panel.0 + GAP) + GAP;
        let list = n * LINE + GAP;
        let height = list + rows * (panel.1 + GAP) + GAP;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        for (number, profile) in self.profiles.iter().enumerate() {
            let y = GAP + number * LINE;
            let _ = writeln!(
                out,
                "<text x=\"{GAP}\" y=\"{y}\">{}  {}</text>",
                number + 1,
                escaped(&profile.path)
            );
        }
        for (index, table) in tables.iter().enumerate() {
            let x = GAP + index % COLUMNS * (panel.0 + GAP);
            let y = list + GAP / 2 + index / COLUMNS * (panel.1 + GAP);
            draw(&mut out, table, x, y);
        }
        out.push_str("</svg>\n");
        out
    }
}

fn draw(out: &mut String, table: &Table, x: usize, y: usize) {
    let _ = writeln!(
        out,
        "<g transform=\"translate({x} {y})\"><text x=\"{LEFT}\" y=\"16\" font-weight=\"bold\">{}</text>",
        escaped(table.title)
    );
    // Differences are small numbers: their scale ends at the largest.
    let most = table.values.iter().flatten().copied().fold(0.0, f64::max);
    for (row, values) in table.values.iter().enumerate() {
        let (top, middle) = (TITLE + row * CELL, TITLE + row * CELL + CELL / 2 + 4);
        let _ =
            writeln!(out, "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>", LEFT - 8, row + 1);
        let across = LEFT + row * CELL + CELL / 2;
        let _ = writeln!(
            out,
            "<text x=\"{across}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            TITLE - 8,
            row + 1
        );
        for (column, &value) in values.iter().enumerate() {
            let alike = match table.likeness {
                true => value,
                false if most > 0.0 => 1.0 - value / most,
                false => 1.0,
            };
            let (fill, ink) = colour(alike);
            let left = LEFT + column * CELL;
            let _ = writeln!(
                out,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{fill}\" stroke=\"#fff\"/>\
                 <text x=\"{}\" y=\"{middle}\" text-anchor=\"middle\" font-size=\"12\" fill=\"{ink}\">{}</text>",
                left + CELL / 2,
                number(value)
            );
        }
    }
    out.push_str("</g>\n");
}

/// Three digits that mean something.
fn number(value: f64) -> String {
    if value > 0.0 && value < 0.01 { format!("{value:.0e}") } else { format!("{value:.2}") }
}

/// The colour of a likeness from 0 to 1, and that of text on it.
fn colour(alike: f64) -> (String, &'static str) {
    let alike = if alike.is_finite() { alike.clamp(0.0, 1.0) } else { 0.0 };
    let at = alike * (COLOURS.len() - 1) as f64;
    let low = (at as usize).min(COLOURS.len() - 2);
    let part = at - low as f64;
    let mix = |i: usize| (COLOURS[low][i] + part * (COLOURS[low + 1][i] - COLOURS[low][i])).round() as u8;
    (format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2)), if alike > 0.6 { "#000" } else { "#fff" })
}

fn escaped(text: &str) -> String {
    visible_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
