//! Text for people that commands no terminal.
//!
//! **Problem.** Names of programs, functions and files may hold anything, and reach terminals and browsers in
//! tables, warnings and errors. Control characters move the cursor, set the title, or answer in the user's
//! name; others change the order in which text is shown, or cannot be seen.
//!
//! **Idea.** All of them become visible escapes, as Rust writes them: `\x1b`, `\u{202e}`. JSON has escapes of
//! its own, which change no value.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether `c` does something else to a terminal than to show itself: a control character (line ends are left
/// to the caller), a mark that is not seen, one that changes the direction of text, or a separator of lines.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

fn escaped(
    text: &str,
    stays: impl Fn(char) -> bool,
    mut escape: impl FnMut(&mut String, char),
) -> Cow<'_, str> {
    if text.chars().all(&stays) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if stays(c) { out.push(c) } else { escape(&mut out, c) }
    }
    Cow::Owned(out)
}

fn as_rust(out: &mut String, c: char) {
    let _ = match c {
        '\n' => write!(out, "\\n"),
        '\r' => write!(out, "\\r"),
        '\t' => write!(out, "\\t"),
        c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
        c => write!(out, "\\u{{{:x}}}", u32::from(c)),
    };
}

/// `text` of several lines, with everything but line ends that would not be seen as what it is made visible.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n' || !is_hidden(c), as_rust)
}

/// `text` as one line: a name that holds a line end cannot pass for another line.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    escaped(text, |c| !is_hidden(c), as_rust)
}

/// JSON of the same value that can be shown: such characters stand in strings alone, and have escapes there.
pub fn visible_json(json: &str) -> Cow<'_, str> {
    let as_json = |out: &mut String, c: char| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    };
    escaped(json, |c| c == '\n' || !is_hidden(c), as_json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_would_not_be_seen_is_seen() {
        let name = "a\x1b]0;title\x07b\u{9b}31m\u{202e}txt.exe\u{200b}\u{7f}\r";
        let seen = "a\\x1b]0;title\\x07b\\u{9b}31m\\u{202e}txt.exe\\u{200b}\\x7f\\r";
        assert_eq!(visible(name), seen);
        assert_eq!(visible_line("one\ntwo\tthree"), "one\\ntwo\\tthree");
        assert_eq!(visible("one\ntwo\tthree"), "one\ntwo\\tthree");
    }

    #[test]
    fn names_of_people_and_places_stay_as_they_are() {
        for name in ["Ünïcödé", "日本語", "operator<<", "e\u{301}", "🦀", "C:\\path", ""] {
            assert!(matches!(visible_line(name), Cow::Borrowed(same) if same == name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left(text: String) {
            prop_assert!(!visible_line(&text).chars().any(is_hidden));
            prop_assert!(!visible(&text).chars().any(|c| c != '\n' && is_hidden(c)));
        }

        #[test]
        fn json_keeps_its_values(text: String, hidden in "[\u{7f}-\u{9f}\u{200b}-\u{2069}\u{e0001}-\u{e007f}]{0,9}") {
            let value = format!("{text}{hidden}");
            let json = serde_json::to_string(&value).unwrap();
            let shown = visible_json(&json);
            prop_assert!(!shown.chars().any(is_hidden));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), value);
        }
    }
}
