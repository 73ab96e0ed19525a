//! Rust source without what is not code.

/// `text` with comments and string and character literals replaced by blanks; every byte of the rest stays
/// where it is. Good for looking for words; no substitute for a parser.
pub fn code_only(text: &str) -> String {
    let mut rest = text;
    let mut code = String::with_capacity(text.len());
    while let Some(first) = rest.chars().next() {
        let skipped = match first {
            '/' => comment(rest),
            '"' => Some(string(rest)),
            'r' | 'b' | 'c' if !ends_in_word(&code) => prefixed_string(rest),
            '\'' => character(rest),
            _ => None,
        };
        let length = skipped.unwrap_or(first.len_utf8());
        let (taken, after) = rest.split_at(length);
        if skipped.is_some() {
            code.extend(taken.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        } else {
            code.push(first);
        }
        rest = after;
    }
    code
}

fn ends_in_word(code: &str) -> bool {
    code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The length of the comment at the start of `text`.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    Some(text.len())
}

/// The length of the string literal at the start of `text`, which begins with its quote.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a raw or byte string literal with its prefix, if there is one.
fn prefixed_string(text: &str) -> Option<usize> {
    let prefix = text.len() - text.trim_start_matches(['r', 'b', 'c']).len();
    let after = &text[prefix..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    if prefix > 2 || !after[hashes..].starts_with('"') {
        return None;
    }
    if !text[..prefix].contains('r') {
        return (hashes == 0).then(|| prefix + string(after));
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = prefix + hashes + 1;
    Some(text[body..].find(&end).map_or(text.len(), |at| body + at + end.len()))
}

/// The length of a character literal; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next();
        return chars.find(|&(_, c)| c == '\'').map(|(at, _)| at + 1);
    }
    chars.next().filter(|&(_, c)| c == '\'').map(|(at, _)| at + 1)
}

/// The first components of all paths behind `prefix` in `code` without comments and literals, with where: of
/// `std::fs` and of `std::{fs, io::Read}`, behind `std::`, it is `fs`, and `fs` and `io`.
pub fn heads_behind<'c>(prefix: &str, code: &'c str) -> Vec<(usize, &'c str)> {
    let mut heads = Vec::new();
    for (at, found) in code.match_indices(prefix) {
        let start = at + found.len();
        let Some(group) = code[start..].strip_prefix('{') else {
            heads.push((start, word(&code[start..])));
            continue;
        };
        let (mut depth, mut fresh) = (0_usize, true);
        for (offset, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => fresh = true,
                c if fresh && c.is_alphabetic() => {
                    heads.push((start + 1 + offset, word(&group[offset..])));
                    fresh = false;
                }
                _ => {}
            }
        }
    }
    heads
}

/// Where the bracket that was opened before `code` is closed.
pub fn end_of_brackets(code: &str) -> Option<usize> {
    let mut depth = 1;
    code.char_indices().find_map(|(at, c)| {
        depth += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        (depth == 0).then_some(at)
    })
}

fn word(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        for (text, code) in [
            ("a // b\nc", "a\nc"),
            ("a /* b /* c */ d */ e", "a e"),
            (r#"f("x \" y") g"#, "f( ) g"),
            ("r#\"a \" b\"# c", "c"),
            ("br\"a\" b\"c\" d", "d"),
            ("'\\'' 'x' 'a: &'b", "'a: &'b"),
            ("for r in bar", "for r in bar"),
            ("fr\"x\"", "fr"),
            ("\"no end", ""),
            ("\"ü\" a", "a"),
        ] {
            let found = code_only(text);
            assert_eq!(found.len(), text.len(), "{text}");
            let lines: Vec<String> =
                found.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
            assert_eq!(lines.join("\n"), code, "{text}");
        }
    }
}
