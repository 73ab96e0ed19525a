//! Tables for a terminal of 80 columns.

use crate::text::WIDTH;
use crate::visible::visible_line;

/// Columns that names have at most; a row with a longer one begins on a line of its own.
const NAMES: usize = 24;

/// A table: names at the left, and to their right what there is of each, below `heads`, the first of which is
/// above the names. What finds no place beside each other in 80 columns goes on in a second table below.
/// (A cell that is wider than that stays whole.)
pub fn table(heads: &[&str], rows: &[(String, Vec<String>)]) -> String {
    let (of_names, heads) = heads.split_first().map_or(("", heads), |(first, others)| (*first, others));
    let long = |name: &str| name.chars().count();
    let fitting = rows.iter().map(|(name, _)| long(name)).filter(|width| *width <= NAMES);
    let names = fitting.chain([long(of_names)]).max().unwrap_or_default();
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|(_, cells)| cells.get(column)).map(|cell| long(cell));
        cells.chain([long(heads[column])]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..heads.len()).map(width_of).collect();
    let mut out = String::new();
    for columns in groups(&widths, WIDTH - names) {
        if !out.is_empty() {
            out.push('\n');
        }
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells = columns.clone().map(|column| format!(" {:>1$}", cell(column), widths[column]));
            cells.collect::<String>()
        };
        out += &format!("{of_names:<names$}{}\n", line(&|column| heads[column].into()));
        for (name, cells) in rows {
            let mut name = visible_line(name).into_owned();
            if long(&name) > names {
                out += &format!("{name}\n");
                name.clear();
            }
            let cells = line(&|column| cells.get(column).cloned().unwrap_or_default());
            out += &format!("{name:<names$}{}\n", cells.trim_end());
        }
    }
    out
}

/// Columns that stand beside each other in `room`, each with a blank in front of it.
fn groups(widths: &[usize], room: usize) -> Vec<std::ops::Range<usize>> {
    let (mut groups, mut begin, mut taken) = (Vec::new(), 0, 0);
    for (column, width) in widths.iter().enumerate() {
        if column > begin && taken + 1 + width > room {
            groups.push(begin..column);
            (begin, taken) = (column, 0);
        }
        taken += 1 + width;
    }
    groups.push(begin..widths.len());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, cells: &[&str]) -> (String, Vec<String>) {
        (name.into(), cells.iter().map(|cell| (*cell).into()).collect())
    }

    #[test]
    fn what_fits_is_one_table() {
        let rows = [row("one", &["1", "22.5"]), row("another", &["333"])];
        let shown = "name      a    b\none       1 22.5\nanother 333\n";
        assert_eq!(table(&["name", "a", "b"], &rows), shown);
    }

    #[test]
    fn what_is_too_wide_goes_on_below() {
        let wide = "x".repeat(30);
        let long = "a layout with a name that is longer than most";
        let rows = [row("one", &[&wide, &wide, &wide]), row(long, &["1", "2", "3"])];
        let shown = table(&["name", "a", "b", "c"], &rows);
        assert!(shown.lines().all(|line| line.chars().count() <= WIDTH), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.starts_with("name")).count(), 2, "{shown}");
        assert_eq!(shown.lines().filter(|line| *line == long).count(), 2, "{shown}");
        for cell in ["1", "2", "3", "b", "c"] {
            assert_eq!(shown.split_whitespace().filter(|word| *word == cell).count(), 1, "{shown}");
        }
    }
}
