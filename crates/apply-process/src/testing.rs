//! Readers of the state directory's files, each given any bytes: nothing panics, and what is accepted is
//! sound.

use crate::state::journal::{Journal, JournalVersion, version_in_record};
use crate::state::map_file::StoredMap;
use crate::state::state_file::ADDRESSES_END;
use restitch_address::Svma;
use std::path::{Path, PathBuf};

/// Where the files are said to be.
const FOLDER: &str = "/state";
/// Whose journal.
const JOURNAL: &str = "/state/7-9.json";
/// Which version's record, and where that is mapped.
const IMAGE: (&str, u64) = ("/state/program.0123456789abcdef.restitch-version", 0x7000_0000);

fn assert_sound(version: &JournalVersion) {
    let range = version.range();
    assert!(range.start <= range.end && range.end.get() <= ADDRESSES_END, "{version:?}");
    assert_eq!(
        (version.file.parent(), version.map_file.parent()),
        (Some(Path::new(FOLDER)), Some(Path::new(FOLDER)))
    );
    assert!(version.number < u32::MAX);
}

/// A journal.
pub fn journal(data: &[u8]) {
    let Ok(journal) = Journal::parse(data, Path::new(JOURNAL)) else { return };
    journal.versions.iter().for_each(assert_sound);
    assert_eq!(Journal::parse(&journal.written(), Path::new(JOURNAL)).expect("it was read before"), journal);
}

/// A version's record.
pub fn record(data: &[u8]) {
    let Some(version) = version_in_record(data, Path::new(IMAGE.0), IMAGE.1) else { return };
    assert_sound(&version);
    assert_eq!((version.file, version.start), (PathBuf::from(IMAGE.0), IMAGE.1));
}

/// An address map.
pub fn map_file(data: &[u8]) {
    let Some(stored) = StoredMap::read(data) else { return };
    assert_eq!(stored.write(), data, "there is one way to write it");
    let ends = stored.map.pieces.iter().flat_map(|p| [p.version, p.version + u64::from(p.len)]);
    for at in ends.flat_map(|at| [at - 1, at, at + 1]).chain([Svma::new(0), Svma::new(u64::MAX)]) {
        let _ = (stored.original_byte(at), stored.nearest_original(at), stored.map.to_original(at));
    }
}

/// A journal, a record and an address map to begin with.
pub fn seeds() -> [Vec<u8>; 3] {
    let hook = format!(
        r#"{{"page":1879048192,"len":61440,"slot":16,"original":1,"link_map":2,"rows":[1],"generation":1,"fixed":"{}","detours":[],"debugger":0}}"#,
        "00".repeat(crate::state::hook_journal::TABLE_AT as usize)
    );
    let version = format!(
        r#"{{"number":1,"kind":"optimized","module":"/bin/program","bias":4096,"start":{},"len":8192,"file":"{}","map_file":"x","eh_frame_hdr":{},"counters":[4096,8192],"retired":false,"slots":[{{"at":8,"entry":16}}]}}"#,
        IMAGE.1, IMAGE.0, IMAGE.1
    );
    let spares = r#"[{"start":8192,"len":4096,"inode":7,"offset":0}]"#;
    let patch = r#"{"at":5,"original":[1,2,3,4,5],"now":[233,2,3,4,5]}"#;
    let journal = format!(
        r#"{{"schema":1,"pid":7,"start_time":9,"next_number":2,"versions":[{version}],"patches":[{patch}],"hook":null,"used":[[4096,1]],"spares":{spares}}}"#
    );
    let record = format!(r#"{{"version":{version},"hook":{hook},"spares":{spares}}}"#);
    [journal.into(), record.into(), example_map().write()]
}

fn example_map() -> StoredMap {
    use restitch_emit::{AddressMap, MapPiece, PieceKind, Redirect, RedirectKind};
    let piece = |version, original, len, kind| MapPiece {
        version: Svma::new(version),
        original: Svma::new(original),
        len,
        kind,
    };
    let pieces = vec![piece(0x1000, 0x100, 16, PieceKind::Linear), piece(0x1010, 0, 4, PieceKind::Opaque)];
    let redirects = vec![Redirect { at: Svma::new(0x100), to: Svma::new(0x1000), kind: RedirectKind::Entry }];
    StoredMap { map: AddressMap { pieces, ..AddressMap::default() }, redirects }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_accepted() {
        let [journal, record, map] = seeds();
        Journal::parse(&journal, Path::new(JOURNAL)).expect("sound");
        version_in_record(&record, Path::new(IMAGE.0), IMAGE.1).expect("sound");
        StoredMap::read(&map).expect("sound");
    }

    /// What nobody but a liar, or a disk that loses bits, writes.
    #[test]
    fn impossible_numbers_are_refused() {
        let [journal, record, _] = seeds().map(|seed| String::from_utf8_lossy(&seed).into_owned());
        let start = IMAGE.1.to_string();
        for (number, instead) in [
            ("\"start_time\":9", "\"start_time\":8"),
            ("\"next_number\":2", "\"next_number\":4294967295"),
            ("\"number\":1", "\"number\":4294967295"),
            ("\"len\":8192", "\"len\":18446744073709551615"),
            ("[4096,8192]", "[4096,18446744073709551615]"),
            ("[4096,8192]", "[4097,8192]"),
            ("\"at\":5", "\"at\":18446744073709551615"),
            ("\"at\":8", "\"at\":18446744073709551615"),
            (".restitch-version", ".restitch-map"),
            ("[4096,1]", "[4096,18446744073709551615]"),
            ("\"start\":8192", "\"start\":18446744073709547520"),
            (start.as_str(), "18446744073709547520"),
        ] {
            let text = journal.replace(number, instead);
            assert_ne!(text, journal, "{number}");
            let error = Journal::parse(text.as_bytes(), Path::new(JOURNAL)).expect_err(instead).to_string();
            assert!(error.contains("cannot be read"), "{error}");
        }
        for (number, instead) in [
            ("\"len\":8192", "\"len\":18446744073709551615"),
            (start.as_str(), "4096"),
            ("program.0123", "program.0124"),
            ("\"page\":1879048192", "\"page\":18446744073709547520"),
            ("\"page\":1879048192,\"len\":61440", "\"page\":1879048192,\"len\":1"),
            ("\"fixed\":\"00", "\"fixed\":\"0x"),
        ] {
            let text = record.replace(number, instead);
            assert_ne!(text, record, "{number}");
            assert_eq!(version_in_record(text.as_bytes(), Path::new(IMAGE.0), IMAGE.1), None, "{instead}");
        }
    }

    #[test]
    fn a_version_has_its_files_in_the_state_directory_whatever_is_written() {
        let [journal, ..] = seeds();
        let text = String::from_utf8_lossy(&journal).replace("/state/program", "/etc/cron.d/program");
        let read = Journal::parse(text.as_bytes(), Path::new(JOURNAL)).expect("its name is possible");
        assert_eq!(read.versions[0].file, Path::new(IMAGE.0));
        assert_eq!(read.versions[0].map_file, Path::new(IMAGE.0).with_extension("restitch-map"));
    }
}
