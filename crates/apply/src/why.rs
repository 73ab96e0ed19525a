//! What errors of many kinds come of.

/// Why something is not as it has to be: the error that says so, or words.
pub type Why = Box<dyn std::error::Error + Send + Sync>;

/// An error in other words.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
struct Explained {
    words: String,
    source: Why,
}

/// `source` in `words`, which hold what it says and what that means where it happened.
pub fn explained(words: String, source: impl Into<Why>) -> Why {
    Box::new(Explained { words, source: source.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn an_error_in_other_words_is_kept() {
        let error = Error::from(ErrorKind::NotFound);
        let why = explained(format!("looking for it: {error}"), error);
        assert_eq!(why.to_string(), format!("looking for it: {}", ErrorKind::NotFound));
        let source = why.source().and_then(|source| source.downcast_ref::<Error>());
        assert_eq!(source.map(Error::kind), Some(ErrorKind::NotFound));
    }
}
