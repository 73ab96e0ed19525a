//! A rule about errors that come of other errors.

use crate::source::end_of_brackets;
use crate::{File, Finding, Tree, code_only};
use std::ops::Range;

/// Programs that tests are made with may say in words alone what went wrong.
const TOOLS: [&str; 1] = ["testkit"];

/// Who says in an error what another one says keeps that one as its source.
///
/// Looked at are the closures of `map_err`, and the arms and the blocks of `if let` that make an error of an
/// error. Whoever needs no more than that something failed takes `|_|`.
pub fn kept_sources(tree: &Tree) -> Vec<Finding> {
    let is_product = |file: &&File| file.is_product() && !file.krate().is_some_and(|k| TOOLS.contains(&k));
    let mut findings = Vec::new();
    for file in tree.rust().filter(is_product) {
        let text = file.before_tests();
        let code = code_only(text);
        let mut lost: Vec<usize> =
            handlers(&code).filter(|h| h.is_lost(text, &code)).map(|h| h.body.start).collect();
        lost.extend(code.match_indices(".map_err(ToString::to_string)").map(|(at, _)| at));
        lost.sort_unstable();
        for at in lost {
            let line = code[..at].matches('\n').count() + 1;
            let what = "an error becomes words: keep it as the source (restitch_apply::Why, explained)";
            findings.push(Finding { path: file.path.clone(), line, what: what.into() });
        }
    }
    findings
}

/// What makes another error of an error.
struct Handler<'c> {
    /// The name of the first one.
    name: &'c str,
    /// Where the other one is made.
    body: Range<usize>,
}

impl Handler<'_> {
    /// Whether nothing is left of the error but what it says. Without literals `text` is `code`.
    fn is_lost(&self, text: &str, code: &str) -> bool {
        let (name, body) = (self.name, self.body.clone());
        let named: Vec<(&str, &str)> = words(&code[body.clone()], name).collect();
        // Whoever gets no more than a look at it cannot keep it.
        let is_said = |(before, behind): &&(&str, &str)| {
            let behind = behind.trim_start();
            behind.starts_with(".to_string()") || before.ends_with('&') && behind.starts_with([',', ')'])
        };
        let said = named.iter().filter(is_said).count();
        let is_in_literal =
            |at: usize| code[body.start + at..].starts_with(' ') && !text[..body.start + at].ends_with('{');
        let shown = [format!("{{{name}}}"), format!("{{{name}:")];
        let shown = shown.iter().flat_map(|form| text[body.clone()].match_indices(form.as_str()));
        let shown = shown.filter(|(at, _)| is_in_literal(*at)).count();
        said + shown > 0 && said == named.len()
    }
}

/// The closures of `map_err` that name their error, the arms `Err(name) => Err(...)`, and what is returned in
/// the block of `if let Err(name) = ...`.
fn handlers(code: &str) -> impl Iterator<Item = Handler<'_>> {
    let closures = code.match_indices(".map_err(").filter_map(|(at, found)| {
        let start = at + found.len();
        let body = start..start + end_of_brackets(&code[start..])?;
        let (name, _) = code[body.clone()].trim_start().strip_prefix('|')?.split_once(['|', ':'])?;
        let bar = body.start + code[body.clone()].find('|')? + 1;
        let behind = bar + code[bar..body.end].find('|')? + 1;
        Some(Handler { name, body: behind..body.end })
    });
    let arms = code.match_indices("Err(").filter_map(|(at, found)| {
        let (name, rest) = code[at + found.len()..].split_once(')')?;
        let made = rest.trim_start().strip_prefix("=>")?.trim_start();
        let made = made.strip_prefix("return ").unwrap_or(made).strip_prefix("Err(")?;
        let start = code.len() - made.len();
        Some(Handler { name, body: start..start + end_of_brackets(made)? })
    });
    let blocks = code.match_indices("if let Err(").filter_map(|(at, found)| {
        let (name, rest) = code[at + found.len()..].split_once(')')?;
        let mut depth = 0;
        let open = rest.find(|c| {
            depth += i32::from(matches!(c, '(' | '[')) - i32::from(matches!(c, ')' | ']'));
            c == '{' && depth == 0
        });
        let open = code.len() - rest.len() + open? + 1;
        let block = open..open + end_of_brackets(&code[open..])?;
        let made = code[block.clone()].find("return Err(")? + "return Err(".len();
        let start = block.start + made;
        Some(Handler { name, body: start..start + end_of_brackets(&code[start..])? })
    });
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    closures
        .chain(arms)
        .chain(blocks)
        .filter(move |handler| is_name(handler.name) && !handler.name.starts_with('_'))
}

/// What stands in front of each `name` in `code` that is a whole word, and behind it.
fn words<'c>(code: &'c str, name: &'c str) -> impl Iterator<Item = (&'c str, &'c str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name)
        .filter(move |(at, _)| !code[..*at].ends_with(is_part))
        .map(move |(at, _)| (&code[..at], &code[at + name.len()..]))
        .filter(move |(_, behind)| !behind.starts_with(is_part))
}
