//! The README's table of gains says what the benchmarks have measured.

use crate::{Finding, Tree};

/// The README, and words in front of its table.
const README: &str = "README.md";
const ABOVE: &str = "CPU time for the same work";
/// Where the measured table stands, and between which marks.
const MEASURED: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

/// The figures of each row in the README's table are those of this program's rows in the table of benchmarks,
/// in their order, in hundredths; rows whose verdict is unclear have none there.
pub fn gains(tree: &Tree) -> Vec<Finding> {
    let text = |path: &str| tree.files.iter().find(|f| f.path == path).map_or("", |f| f.text.as_str());
    let measured = measured(text(MEASURED));
    let mut findings = Vec::new();
    for (line, row) in told(text(README)) {
        let what = match what_is_wrong(&row, &measured) {
            Some(what) => what,
            None => continue,
        };
        findings.push(Finding { path: README.into(), line, what });
    }
    findings
}

/// A row of the measured table.
struct Measured {
    /// The first word of what was measured.
    program: String,
    /// CPU time, original = 1, in hundredths; none where the verdict is unclear.
    hundredths: Option<String>,
}

fn what_is_wrong(row: &[&str], measured: &[Measured]) -> Option<String> {
    let [program, gains] = row else {
        return Some("is a row with more or less than two cells".into());
    };
    let is_of = |m: &&Measured| program.to_lowercase().contains(&m.program);
    let of_it: Vec<&Measured> = measured.iter().filter(is_of).collect();
    if of_it.is_empty() {
        return Some(format!("is of a program that the table of {MEASURED} does not have"));
    }
    let wanted: Vec<&str> = of_it.iter().filter_map(|m| m.hundredths.as_deref()).collect();
    let has = figures(gains);
    (has != wanted).then(|| format!("has the figures {has:?}, and {MEASURED} has {wanted:?}"))
}

/// Rows of the README's table with the numbers of their lines, the two at its head left out.
fn told(text: &str) -> Vec<(usize, Vec<&str>)> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| !line.contains(ABOVE)).skip(1);
    let rows = lines.skip_while(|(_, line)| !line.starts_with('|'));
    let rows = rows.take_while(|(_, line)| line.starts_with('|')).skip(2);
    rows.map(|(number, line)| (number + 1, cells(line))).collect()
}

fn measured(text: &str) -> Vec<Measured> {
    let between = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    let mut rows = between.map_or("", |(table, _)| table).lines().filter(|line| line.starts_with('|'));
    let head = rows.next().map(cells).unwrap_or_default();
    let column = |name: &str| head.iter().position(|cell| cell.starts_with(name));
    let (Some(time), Some(verdict)) = (column("CPU time"), column("verdict")) else { return Vec::new() };
    let row = |line: &str| {
        let cells = cells(line);
        let word = cells.first()?.split([' ', ',']).next()?.to_lowercase();
        let ratio: f64 = cells.get(time)?.split(' ').next()?.parse().ok()?;
        let is_clear = *cells.get(verdict)? != "unclear";
        Some(Measured { program: word, hundredths: is_clear.then(|| format!("{ratio:.2}")) })
    };
    rows.filter_map(row).collect()
}

fn cells(row: &str) -> Vec<&str> {
    row.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// The numbers with a point.
fn figures(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_digit() || c == '.')).map(|word| word.trim_matches('.'));
    words.filter(|word| word.contains('.')).collect()
}
