//! Front ends of processors, as far as the models know them.

use std::str::FromStr;

use serde::Serialize;

/// Shape of a set-associative memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Sets, rounded up to a power of two.
    pub sets: usize,
    /// Entries of each set.
    pub ways: usize,
}

impl Geometry {
    /// So many entries in sets of so many.
    pub const fn entries(entries: usize, ways: usize) -> Self {
        Self { sets: entries / ways, ways }
    }
    /// A cache of so many KiB with 64-byte lines.
    pub const fn kib(kib: usize, ways: usize) -> Self {
        Self::entries(kib * 16, ways)
    }
}

/// A front end. Figures are those of the manufacturers' manuals and of published measurements; where a
/// structure has several levels (branch target buffers), the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Bytes of a cache line.
    pub line: u64,
    /// Bytes of a page.
    pub page: u64,
    /// The instruction cache.
    pub l1i: Geometry,
    /// The second-level cache; code is given half of its ways.
    pub l2: Geometry,
    /// The first-level instruction TLB.
    pub itlb: Geometry,
    /// Entries of a first-level instruction TLB of its own for large pages; 0 where they share `itlb`. (Intel
    /// has 8, fully associative, from Haswell on, 16 from Ice Lake, 32 from Golden Cove: Optimization
    /// Reference Manual, "Cache Parameters" and the sections on these cores.)
    pub large_itlb: usize,
    /// Whether the hot code of versions lies in large pages of 2 MiB.
    pub large_pages: bool,
    /// The second-level TLB that serves instructions.
    pub stlb: Geometry,
    /// The branch target buffer.
    pub btb: Geometry,
}

/// No machine has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no machine \"{0}\" is known; choose one of {names}, or leave it away for this machine", names = Machine::NAMES.join(", "))]
pub struct UnknownMachine(pub String);

impl Machine {
    /// The names that [`Machine::from_str`] knows.
    pub const NAMES: [&'static str; 10] = [
        "haswell",
        "kaby-lake",
        "ice-lake",
        "golden-cove",
        "zen2",
        "zen3",
        "zen4",
        "zen5",
        "neoverse-n1",
        "neoverse-v1",
    ];

    /// The machine that this code runs on: TLBs and branch target buffer of the named machine that is most
    /// like it by `vendor`, `family` and `model` (as in `/proc/cpuinfo`), caches as given where they are
    /// known.
    pub fn like(vendor: &str, family: u32, model: u32, l1i: Option<Geometry>, l2: Option<Geometry>) -> Self {
        let name = match (vendor, family) {
            ("AuthenticAMD", 26..) => "zen5",
            ("AuthenticAMD", 25) if matches!(model, 0x10..=0x1f | 0x60..=0xaf) => "zen4",
            ("AuthenticAMD", 25) => "zen3",
            ("AuthenticAMD", _) => "zen2",
            ("GenuineIntel", 6) if model < 0x4e => "haswell",
            // Ice Lake (servers and others), Tiger Lake, Rocket Lake.
            ("GenuineIntel", 6) if matches!(model, 0x6a | 0x6c | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7) => {
                "ice-lake"
            }
            // Alder Lake, Raptor Lake, Sapphire Rapids, Emerald Rapids.
            ("GenuineIntel", 6) if matches!(model, 0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0x8f | 0xcf) => {
                "golden-cove"
            }
            _ => "kaby-lake",
        };
        let mut machine = Self::named(name);
        machine.name = format!("this machine (TLBs and branch target buffer as {name})");
        machine.l1i = l1i.unwrap_or(machine.l1i);
        machine.l2 = l2.unwrap_or(machine.l2);
        machine
    }

    /// Sizes in bytes of what near code shares: page, caches, reach of the TLBs, large page. (Of the L2 half
    /// as well, which is what code is given.)
    pub fn levels(&self) -> [u64; 7] {
        let entries = |g: Geometry| (g.sets * g.ways) as u64;
        let l2 = entries(self.l2) * self.line;
        let (itlb, stlb) = (entries(self.itlb) * self.page, entries(self.stlb) * self.page);
        [self.page, entries(self.l1i) * self.line, l2 / 2, l2, itlb, stlb, 2 << 20]
    }

    /// The same machine, with the hot code of versions in large pages.
    pub fn with_large_pages(mut self) -> Self {
        self.large_pages = true;
        self.name.push_str(", hot code in large pages");
        self
    }

    fn named(name: &str) -> Self {
        let make = |l1i, l2, itlb, stlb, btb| Self {
            name: name.to_owned(),
            line: 64,
            page: 4096,
            large_itlb: match name {
                "haswell" | "kaby-lake" => 8,
                "ice-lake" => 16,
                "golden-cove" => 32,
                _ => 0,
            },
            large_pages: false,
            l1i,
            l2,
            itlb,
            stlb,
            btb,
        };
        let (kib, of) = (Geometry::kib, Geometry::entries);
        match name {
            "haswell" => make(kib(32, 8), kib(256, 8), of(128, 4), of(1024, 8), of(4096, 4)),
            "ice-lake" => make(kib(32, 8), kib(1280, 20), of(128, 8), of(2048, 16), of(5120, 5)),
            "golden-cove" => make(kib(32, 8), kib(2048, 16), of(256, 8), of(2048, 16), of(12288, 6)),
            "zen2" => make(kib(32, 8), kib(512, 8), of(64, 64), of(1024, 8), of(7168, 7)),
            "zen3" => make(kib(32, 8), kib(512, 8), of(64, 64), of(512, 4), of(6656, 13)),
            "zen4" => make(kib(32, 8), kib(1024, 8), of(64, 64), of(512, 4), of(7168, 7)),
            "zen5" => make(kib(32, 8), kib(1024, 16), of(64, 64), of(2048, 8), of(16384, 8)),
            "neoverse-n1" => make(kib(64, 4), kib(1024, 8), of(48, 48), of(1280, 5), of(6144, 6)),
            "neoverse-v1" => make(kib(64, 4), kib(1024, 8), of(48, 48), of(2048, 8), of(8192, 4)),
            _ => make(kib(32, 8), kib(256, 4), of(128, 8), of(1536, 12), of(4096, 4)),
        }
    }
}

impl FromStr for Machine {
    type Err = UnknownMachine;

    fn from_str(name: &str) -> Result<Self, UnknownMachine> {
        if Self::NAMES.contains(&name) { Ok(Self::named(name)) } else { Err(UnknownMachine(name.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_and_others_are_refused_with_the_names() {
        for name in Machine::NAMES {
            assert_eq!(name.parse::<Machine>().unwrap().name, name);
        }
        assert!("z80".parse::<Machine>().unwrap_err().to_string().contains("zen4"));
    }

    #[test]
    fn the_own_machine_keeps_its_caches() {
        let l2 = Geometry::kib(2048, 16);
        let machine = Machine::like("AuthenticAMD", 25, 17, None, Some(l2));
        assert_eq!((machine.l2, machine.l1i.sets), (l2, 64));
        assert!(machine.name.contains("zen4"));
        let named = |model| Machine::like("GenuineIntel", 6, model, None, None).name;
        for (model, name) in [(63, "haswell"), (85, "kaby-lake"), (106, "ice-lake"), (143, "golden-cove")] {
            assert!(named(model).contains(name), "{model}");
        }
        let kib = |size: u64| size << 10;
        assert_eq!(machine.levels(), [4, 32, 1024, 2048, 256, 2048, 2048].map(kib));
    }
}
