//! The formats: how each is recognised, and what each can hold.

use crate::error::FormatError;
use std::fmt;

/// A format of profile files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// restitch's own compact store: block, edge and call counts of several modules.
    Store,
    /// `perf.data`: samples with or without branch stacks.
    PerfData,
    /// BOLT's `fdata` with branches between `function+offset`.
    Fdata,
    /// BOLT's `fdata` in its `no_lbr` mode: samples at `function+offset`.
    FdataNoLbr,
    /// BOLT's YAML profile.
    BoltYaml,
    /// The pre-aggregated text that `perf2bolt --pa` reads.
    PreAggregated,
    /// AutoFDO's (LLVM's) sample profile as text.
    AutoFdo,
    /// Propeller's cluster file (`cc_profile`): basic blocks of functions in their new order.
    PropellerClusters,
    /// A symbol a line, in their new order: Propeller's `ld_profile`, lld's `--symbol-ordering-file`.
    SymbolOrder,
}

/// What a format holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Counts or samples: it can be converted, merged and compared.
    Counts,
    /// An order of code, without counts: it can be made of counts, but not the other way round.
    Order,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 9] = [
        Self::Store,
        Self::PerfData,
        Self::Fdata,
        Self::FdataNoLbr,
        Self::BoltYaml,
        Self::PreAggregated,
        Self::AutoFdo,
        Self::PropellerClusters,
        Self::SymbolOrder,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "restitch",
            Self::PerfData => "perf.data",
            Self::Fdata => "fdata",
            Self::FdataNoLbr => "fdata-no-lbr",
            Self::BoltYaml => "bolt-yaml",
            Self::PreAggregated => "pa",
            Self::AutoFdo => "autofdo",
            Self::PropellerClusters => "propeller",
            Self::SymbolOrder => "order",
        }
    }

    /// One line about it, for help and messages.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Store => "restitch's own compact store",
            Self::PerfData => "perf.data with or without branch stacks",
            Self::Fdata => "BOLT fdata, branch mode",
            Self::FdataNoLbr => "BOLT fdata, no_lbr mode",
            Self::BoltYaml => "BOLT YAML",
            Self::PreAggregated => "BOLT pre-aggregated text (perf2bolt --pa)",
            Self::AutoFdo => "AutoFDO sample profile, text",
            Self::PropellerClusters => "Propeller cluster file",
            Self::SymbolOrder => "symbol order (linker order file, Propeller ld_profile)",
        }
    }

    /// What it holds.
    pub const fn holds(self) -> Holds {
        match self {
            Self::PropellerClusters | Self::SymbolOrder => Holds::Order,
            Self::Store
            | Self::PerfData
            | Self::Fdata
            | Self::FdataNoLbr
            | Self::BoltYaml
            | Self::PreAggregated
            | Self::AutoFdo => Holds::Counts,
        }
    }

    /// The format of this name.
    ///
    /// # Errors
    /// A list of the names.
    pub fn named(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|f| f.name() == name);
        found.ok_or_else(|| format!("there is no format \"{name}\"; there are {}", known()))
    }

    /// The format that a file of this name is written in.
    pub fn of_file_name(name: &str) -> Option<Self> {
        const ENDINGS: [(&str, Format); 16] = [
            (".perf.data", Format::PerfData),
            (".no_lbr.fdata", Format::FdataNoLbr),
            (".fdata", Format::Fdata),
            (".yaml", Format::BoltYaml),
            (".yml", Format::BoltYaml),
            (".preagg", Format::PreAggregated),
            (".pa", Format::PreAggregated),
            (".afdo", Format::AutoFdo),
            (".prof.txt", Format::AutoFdo),
            (".cc_profile.txt", Format::PropellerClusters),
            (".propeller", Format::PropellerClusters),
            (".ld_profile.txt", Format::SymbolOrder),
            (".order", Format::SymbolOrder),
            (".restitch", Format::Store),
            (".rstprof", Format::Store),
            (".profile", Format::Store),
        ];
        if name == "perf.data" {
            return Some(Self::PerfData);
        }
        ENDINGS.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }

    /// The format that these bytes are in, by what they begin with.
    ///
    /// # Errors
    /// If they are in none.
    pub fn detect(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.starts_with(b"RSTPROF\0") {
            return Ok(Self::Store);
        }
        if bytes.starts_with(b"PERFILE2") {
            return Ok(Self::PerfData);
        }
        let end = bytes.len().min(64 << 10);
        let head = String::from_utf8_lossy(&bytes[..end]);
        let whole = !head.trim().is_empty() && !head.contains('\0');
        let found = if whole { of_text(&head) } else { None };
        found.ok_or_else(|| FormatError::Content {
            format: "a profile",
            what: "this is in none of the formats that restitch knows".into(),
            next: "see `restitch profile formats` for them, and --from to name one",
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Text formats by their first lines.
fn of_text(head: &str) -> Option<Format> {
    if head.starts_with("---") && (head.contains("profile-version") || head.contains("header:")) {
        return Some(Format::BoltYaml);
    }
    if head.starts_with("no_lbr") {
        return Some(Format::FdataNoLbr);
    }
    if head.starts_with("boltedcollection") {
        return Some(Format::Fdata);
    }
    let is_content = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    let line = head.lines().find(is_content)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |w: &str| w.bytes().all(|b| b.is_ascii_digit()) && !w.is_empty();
    let place = |w: &str| {
        let offset = w.rsplit_once(':').map_or(w, |(_, offset)| offset);
        !offset.is_empty() && offset.bytes().all(|b| b.is_ascii_hexdigit())
    };
    match words[..] {
        ["0" | "1" | "2" | "3" | "4" | "5", .., misses, count]
            if words.len() >= 8 && number(misses) && number(count) =>
        {
            Some(Format::Fdata)
        }
        ["B" | "F" | "f" | "r" | "R" | "T" | "S", from, ..] if place(from) && words.len() >= 3 => {
            Some(Format::PreAggregated)
        }
        ["E", _] => Some(Format::PreAggregated),
        ["v0" | "v1"] => Some(Format::PropellerClusters),
        [first] if first.starts_with("!!") => None,
        [first] if first.starts_with('!') => Some(Format::PropellerClusters),
        [first] if is_autofdo_header(first) => Some(Format::AutoFdo),
        [_] if are_symbols(head) => Some(Format::SymbolOrder),
        _ => None,
    }
}

/// Whether each line is one word, or none, that may be a function's symbol: compilers put other characters
/// than these into names.
fn are_symbols(head: &str) -> bool {
    let lines = head.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.into_iter().all(|line| {
        let mut words = line.split_whitespace();
        words.next().is_none_or(|word| !word.contains([':', ',', '\\', '=', ';', '"']))
            && words.next().is_none()
    })
}

/// `name:total:head`
fn is_autofdo_header(word: &str) -> bool {
    let mut parts = word.rsplitn(3, ':');
    let mut number = || parts.next().is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    number() && number() && parts.next().is_some_and(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_recognised() {
        let cases: [(&[u8], Format); 13] = [
            (b"RSTPROF\0...", Format::Store),
            (b"PERFILE2...", Format::PerfData),
            (b"1 main 1c 1 main 30 0 10\n", Format::Fdata),
            (b"0 [unknown] 0 1 main 0 0 1\n", Format::Fdata),
            (b"boltedcollection\n1 main 1c 1 main 30 0 10\n", Format::Fdata),
            (b"no_lbr cycles:\n1 main 1c 10\n", Format::FdataNoLbr),
            (b"---\nheader:\n  profile-version: 1\n", Format::BoltYaml),
            (b"B 4b1942 39b57f0 3 0\n", Format::PreAggregated),
            (b"F X:41be50 41be50 3\n", Format::PreAggregated),
            (b"main:184019:0\n 4: 534\n", Format::AutoFdo),
            (b"v1\nf main\nc0 1 2\n", Format::PropellerClusters),
            (b"!main\n!!0 1 2\n", Format::PropellerClusters),
            (b"# order\nmain\n_ZN3fooEv\n", Format::SymbolOrder),
        ];
        for (bytes, format) in cases {
            assert_eq!(Format::detect(bytes), Ok(format), "{}", String::from_utf8_lossy(bytes));
        }
        for format in Format::ALL {
            assert!(cases.iter().any(|(_, of)| *of == format), "nothing is recognised as {format}");
        }
        let passwd =
            b"daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\nbin:x:2:2:bin:/bin:/usr/sbin/nologin\n";
        for bad in [&b""[..], b"\x7fELF\x02\0\0", b"two words and more\n", b"title\ntwo words\n", passwd] {
            assert!(Format::detect(bad).unwrap_err().to_string().contains("--from"));
        }
    }

    /// As they are declared: a list of variants cannot be asked of the compiler.
    #[test]
    fn the_list_of_formats_has_all_of_them() {
        let (_, declaration) = include_str!("format.rs").split_once("pub enum Format {\n").unwrap();
        let (variants, _) = declaration.split_once("\n}").unwrap();
        let lines = variants.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        let declared: Vec<&str> = lines.map(|line| line.trim_end_matches(',')).collect();
        assert_eq!(Format::ALL.map(|format| format!("{format:?}"))[..], declared);
    }

    /// A file name of its own, and a row of the page for users.
    #[test]
    fn each_format_has_an_ending_and_a_row_of_the_page() {
        let page = include_str!("../../../docs/profiles.md");
        for format in Format::ALL {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{format}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/profiles.md has no row for {format}"));
            let ending = row.split('`').nth(3).unwrap_or_default();
            assert_eq!(Format::of_file_name(&format!("x{ending}")), Some(format), "{row}");
        }
    }

    #[test]
    fn names_and_endings_lead_back() {
        for format in Format::ALL {
            assert_eq!(Format::named(format.name()), Ok(format));
        }
        assert!(Format::named("gcov").unwrap_err().contains("fdata"));
        for (name, format) in [
            ("x.fdata", Format::Fdata),
            ("x.no_lbr.fdata", Format::FdataNoLbr),
            ("perf.data", Format::PerfData),
            ("out.perf.data", Format::PerfData),
            ("a.yaml", Format::BoltYaml),
        ] {
            assert_eq!(Format::of_file_name(name), Some(format));
        }
        assert_eq!(Format::of_file_name("something"), None);
    }
}
