//! Paths in JSON. Names of files are bytes, which need not be text: a path that is none is a list of its
//! bytes.
//!
//! For `#[serde(with = "...")]`.

use serde::{Deserialize, Deserializer, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Text(PathBuf),
    Bytes(Vec<u8>),
}

/// Writes it.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => serializer.serialize_str(text),
        None => serializer.collect_seq(path.as_os_str().as_bytes()),
    }
}

/// Reads it.
///
/// # Errors
/// If it is neither.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Ok(match Stored::deserialize(deserializer)? {
        Stored::Text(path) => path,
        Stored::Bytes(bytes) => OsString::from_vec(bytes).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "super")]
        path: PathBuf,
    }

    #[test]
    fn paths_that_are_no_text_come_back() {
        for (path, expected) in
            [(&b"/a b\n"[..], r#"{"path":"/a b\n"}"#), (b"/\xff\xfe", r#"{"path":[47,255,254]}"#)]
        {
            let holder = Holder { path: OsString::from_vec(path.to_vec()).into() };
            let text = serde_json::to_string(&holder).expect("any path can be written");
            assert_eq!(text, expected);
            assert_eq!(serde_json::from_str::<Holder>(&text).expect("what was written"), holder);
        }
        assert!(serde_json::from_str::<Holder>(r#"{"path":7}"#).is_err());
    }
}
