//! A rule about the signatures of functions.

use crate::source::end_of_brackets;
use crate::{Finding, Tree, code_only};

/// Parameters have names: no tuple stands in place of several, or of a struct.
pub fn tuple_parameters(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.is_product()) {
        let code = code_only(file.before_tests());
        for (at, parameters) in signatures(&code) {
            if separated(parameters).any(|parameter| parameter.trim_start_matches('&').starts_with('(')) {
                let line = code[..at].matches('\n').count() + 1;
                let what = "a tuple as a parameter: name each part, or give them a struct".into();
                findings.push(Finding { path: file.path.clone(), line, what });
            }
        }
    }
    findings
}

/// Where functions are declared, and what stands between the brackets of their parameters.
fn signatures(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let declared = code.match_indices("fn ").filter(|(at, _)| {
        let (before, behind) = (&code[..*at], &code[at + 3..]);
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            && behind.starts_with(|c: char| c.is_alphabetic() || c == '_')
    });
    declared.filter_map(|(at, _)| {
        let name = at + 3 + code[at + 3..].find(|c: char| !c.is_alphanumeric() && c != '_')?;
        let open = name + if code[name..].starts_with('<') { generics(&code[name..])? } else { 0 };
        let close = open + 1 + end_of_brackets(code[open..].strip_prefix('(')?)?;
        Some((at, &code[open + 1..close]))
    })
}

/// The length of `<...>` at the start of `text`; the arrows of function types in it are none of its ends.
fn generics(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        before = c;
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// What stands between the commas that are in no brackets.
fn separated(parameters: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = parameters.split(move |c: char| {
        depth += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        c == ',' && depth == 0
    });
    parts.map(str::trim_start)
}
