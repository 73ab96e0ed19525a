//! Rules about how documents are written: what can be read in one go, and stays true.

use super::documents::is_document;
use crate::{Finding, Tree};

/// Columns that a line of prose may have, as characters. Rows of tables and blocks of code cannot be broken.
const COLUMNS: usize = 120;
/// Words of a paragraph or an item of a list.
const PARAGRAPH: usize = 120;
/// Words of prose between two headings.
const SECTION: usize = 300;
/// Words of the README, and of a page for a job; tables and code included.
const README: usize = 900;
const USAGE: usize = 800;
/// Words of the map of the design and of the page of benchmarks, and of a page for an idea that was given up.
const MAP: usize = 1500;
const DECISION: usize = 200;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// What a line of a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Blank,
    Heading,
    /// A row of a table.
    Row,
    /// Of a fenced block, the fences included.
    Code,
    /// The first line of an item of a list.
    Item,
    Text,
}

/// Documents are short: lines, paragraphs and sections, the README, the map of the design, the page of
/// benchmarks, and the pages of `docs/usage` and `docs/decisions`.
pub fn document_lengths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in documents(tree) {
        let lines = kinds(text);
        let too_long = columns(&lines).into_iter().chain(paragraphs(&lines)).chain(sections(&lines));
        let too_long = too_long.chain(whole(path, text));
        findings.extend(too_long.map(|(line, what)| Finding { path: path.into(), line, what }));
    }
    findings
}

/// Pages of `docs/usage` and `docs/design` hold no dates and no intervals: results of one day belong into
/// `bench/results`. (What a program prints stands in a block of code.)
pub fn timeless_documents(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let timeless = |path: &str| ["docs/usage/", "docs/design/"].iter().any(|folder| path.starts_with(folder));
    for (path, text) in documents(tree).filter(|(path, _)| timeless(path)) {
        for (number, (kind, line)) in kinds(text).into_iter().enumerate() {
            let what = match kind {
                Kind::Code => continue,
                _ if holds_date(line) => "holds a date; results of one day belong into bench/results",
                _ if holds_interval(line) => "holds an interval; results belong into bench/results",
                _ => continue,
            };
            findings.push(Finding { path: path.into(), line: number + 1, what: what.into() });
        }
    }
    findings
}

fn documents(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let all = tree.files.iter().map(|file| (file.path.as_str(), file.text.as_str()));
    all.filter(|(path, _)| is_document(path))
}

fn kinds(text: &str) -> Vec<(Kind, &str)> {
    let mut fenced = false;
    text.lines().map(|line| (kind(line.trim_start(), &mut fenced), line)).collect()
}

fn kind(line: &str, fenced: &mut bool) -> Kind {
    let fence = line.starts_with("```");
    if fence {
        *fenced = !*fenced;
    }
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = number.len() < line.len() && number.starts_with(". ");
    match line {
        _ if fence || *fenced => Kind::Code,
        "" => Kind::Blank,
        _ if line.starts_with('#') => Kind::Heading,
        _ if line.starts_with('|') => Kind::Row,
        _ if numbered || line.starts_with("- ") || line.starts_with("* ") => Kind::Item,
        _ => Kind::Text,
    }
}

/// Words; marks that stand alone are none.
fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

fn columns(lines: &[(Kind, &str)]) -> Vec<(usize, String)> {
    let long = lines.iter().enumerate().filter(|(_, (kind, line))| {
        !matches!(kind, Kind::Row | Kind::Code) && line.chars().count() > COLUMNS
    });
    long.map(|(number, _)| (number + 1, format!("has more than {COLUMNS} columns"))).collect()
}

fn paragraphs(lines: &[(Kind, &str)]) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    let (mut begin, mut count) = (0, 0);
    for (number, (kind, line)) in lines.iter().enumerate() {
        if *kind != Kind::Text || count == 0 {
            (begin, count) = (number + 1, 0);
        }
        if matches!(kind, Kind::Item | Kind::Text) {
            let before = count;
            count += words(line);
            if before <= PARAGRAPH && count > PARAGRAPH {
                findings.push((begin, format!("begins a paragraph of more than {PARAGRAPH} words")));
            }
        }
    }
    findings
}

fn sections(lines: &[(Kind, &str)]) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    let mut count = 0;
    for (number, (kind, line)) in lines.iter().enumerate() {
        match kind {
            Kind::Heading => count = 0,
            Kind::Item | Kind::Text => {
                let before = count;
                count += words(line);
                if before <= SECTION && count > SECTION {
                    findings.push((number + 1, format!("is {SECTION} words behind the last heading")));
                }
            }
            Kind::Blank | Kind::Row | Kind::Code => {}
        }
    }
    findings
}

fn whole(path: &str, text: &str) -> Option<(usize, String)> {
    let most = match path {
        "README.md" => README,
        "docs/DESIGN.md" | "docs/benchmarks.md" => MAP,
        _ if path.starts_with("docs/usage/") => USAGE,
        _ if path.starts_with("docs/decisions/") => DECISION,
        _ => return None,
    };
    let has = words(text);
    (has > most).then(|| (1, format!("has {has} words; {most} are the most")))
}

/// Whether there is a day (2026-01-31) or a month with its year (January 2026).
fn holds_date(line: &str) -> bool {
    let words = || line.split(|c: char| !(c.is_alphanumeric() || c == '-'));
    let is_year = |word: &str| word.len() == 4 && word.starts_with("20") && word.parse::<u16>().is_ok();
    let is_day = |word: &str| {
        let parts: Vec<&str> = word.split('-').collect();
        matches!(parts[..], [year, month, day] if is_year(year)
            && [month, day].iter().all(|part| part.len() == 2 && part.parse::<u8>().is_ok()))
    };
    words().any(is_day) || words().zip(words().skip(1)).any(|(a, b)| MONTHS.contains(&a) && is_year(b))
}

/// Whether there is a pair of numbers in brackets, as [0.95, 1.02].
fn holds_interval(line: &str) -> bool {
    let is_number = |text: &str| text.trim().parse::<f64>().is_ok();
    line.split('[').skip(1).filter_map(|rest| rest.split_once(']')).any(|(inside, _)| {
        inside.split_once(',').is_some_and(|(low, high)| is_number(low) && is_number(high))
    })
}
