//! What the counters of a loaded group module say: read from the kernel's memory, while it goes on counting.
//!
//! A group that counts says where its counters are in a section of its own (`restitch-kernel-group`). Where
//! each processor has its own, they are at that address plus what the kernel adds for the processor.

use crate::error::KernelError;
use crate::kcore::read_memory;
use crate::memory::Memory;
use crate::source::Source;
use crate::symbols::Symbols;
use restitch_address::{Svma, SvmaRange};
use restitch_x86::module_code::CounterMemory;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Bytes of a counter, and of each word of what is said of them.
const WORD: u64 = 8;
/// No group has as many.
const MOST: u64 = 1 << 24;
/// What the kernel adds to addresses of a processor's own memory, by the number of the processor.
const OFFSETS: &str = "__per_cpu_offset";
/// Which processors there may be.
const PROCESSORS: &str = "sys/devices/system/cpu/possible";

/// The counters of a group that is loaded, each the sum over all processors.
///
/// # Errors
/// If there is no such group, it does not count, or the kernel's memory cannot be read.
pub fn counter_values(
    source: &Source,
    symbols: &Symbols,
    group: &str,
    memory: CounterMemory,
) -> Result<Vec<u64>, KernelError> {
    let core = Core { file: source.open("proc/kcore")?, path: source.path("proc/kcore") };
    let head = core.words(head(source, group)?, 2)?;
    let [start, number] = head[..] else { return Err(core.short()) };
    if number > MOST {
        return Err(KernelError::damaged(
            &core.path,
            format!("{number} counters are more than any group has"),
        ));
    }
    let places = match memory {
        CounterMemory::Shared => vec![Svma::new(start)],
        CounterMemory::PerProcessor => {
            let offsets = processor_offsets(source, symbols, &core)?;
            offsets.into_iter().map(|offset| Svma::new(start.wrapping_add(offset))).collect()
        }
    };
    let mut sums = vec![0u64; number as usize];
    for place in places {
        for (sum, value) in sums.iter_mut().zip(core.words(place, number)?) {
            *sum = sum.wrapping_add(value);
        }
    }
    Ok(sums)
}

/// Where the group says what its counters are.
fn head(source: &Source, group: &str) -> Result<Svma, KernelError> {
    let name = format!("sys/module/{group}/sections/.restitch.counters");
    let text = source.text(&name)?;
    let digits = text.trim().strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    match digits {
        Some(0) => Err(KernelError::Hidden { path: source.path(&name) }),
        Some(address) => Ok(Svma::new(address)),
        None => Err(KernelError::damaged(&source.path(&name), "it is no address")),
    }
}

/// What is added for each processor that there may be.
fn processor_offsets(source: &Source, symbols: &Symbols, core: &Core) -> Result<Vec<u64>, KernelError> {
    let table = symbols.address(OFFSETS).ok_or_else(|| KernelError::Missing { what: OFFSETS.into() })?;
    let list = source.text(PROCESSORS)?;
    let numbers = processors(&list);
    let numbers = numbers.ok_or_else(|| {
        KernelError::damaged(&source.path(PROCESSORS), "it is no list of numbers of processors")
    })?;
    let offset = |number: &u64| {
        let words = core.words(table + number * WORD, 1)?;
        words.first().copied().ok_or_else(|| core.short())
    };
    numbers.iter().map(offset).collect()
}

/// The numbers in a list like `0-3,8`.
fn processors(list: &str) -> Option<Vec<u64>> {
    /// No kernel has as many processors.
    const MOST: u64 = 1 << 16;
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The kernel's memory.
struct Core {
    file: File,
    path: PathBuf,
}

impl Core {
    fn words(&self, at: Svma, number: u64) -> Result<Vec<u64>, KernelError> {
        let range = SvmaRange::new(at, number * WORD);
        let read = |offset: u64, room: &mut [u8]| self.file.read_exact_at(room, offset);
        let memory: Memory = read_memory(read, &self.path, range)?;
        let bytes = memory.bytes(range).unwrap_or_default();
        Ok(bytes
            .chunks_exact(WORD as usize)
            .filter_map(|word| word.first_chunk())
            .map(|word| u64::from_le_bytes(*word))
            .collect())
    }

    fn short(&self) -> KernelError {
        KernelError::damaged(&self.path, "what it says of counters is cut")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;
    use std::fs;
    use std::path::Path;

    const HEAD: u64 = 0xffff_ffff_c000_1000;
    const OWN: u64 = 0x2_b000;
    const SHARED: u64 = 0xffff_ffff_c000_2000;
    const TABLE: u64 = 0xffff_ffff_8200_0000;
    const FIRST: u64 = 0xffff_8880_0000_0000;
    const SECOND: u64 = 0xffff_8880_0010_0000;

    /// A core file with these words at these addresses.
    fn core(pieces: &[(u64, &[u64])]) -> Vec<u8> {
        let mut out = vec![0; 64 + 56 * pieces.len()];
        out[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (out[16], out[32], out[54], out[56]) = (4, 64, 56, pieces.len() as u8);
        for (number, (at, words)) in pieces.iter().enumerate() {
            let (header, offset) = (64 + 56 * number, out.len() as u64);
            out[header] = 1;
            for (field, value) in [(8, offset), (16, *at), (32, 8 * words.len() as u64)] {
                out[header + field..header + field + 8].copy_from_slice(&value.to_le_bytes());
            }
            out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        out
    }

    fn folder(at: &Path, counters: u64, possible: &str) -> (Source, Symbols) {
        let sections = at.join("sys/module/group/sections");
        fs::create_dir_all(&sections).unwrap();
        fs::create_dir_all(at.join("sys/devices/system/cpu")).unwrap();
        fs::create_dir_all(at.join("proc")).unwrap();
        fs::write(sections.join(".restitch.counters"), format!("{HEAD:#x}\n")).unwrap();
        fs::write(at.join(PROCESSORS), possible).unwrap();
        let pieces: [(u64, &[u64]); 5] = [
            (HEAD, &[counters, 2]),
            (SHARED, &[7, 8]),
            (TABLE, &[FIRST - OWN, SECOND - OWN]),
            (FIRST, &[1, 2]),
            (SECOND, &[30, 40]),
        ];
        fs::write(at.join("proc/kcore"), core(&pieces)).unwrap();
        let list = format!("{TABLE:016x} D __per_cpu_offset\n");
        (Source::folder(at), Symbols::parse(&list, Path::new("list")).unwrap())
    }

    #[test]
    fn counters_are_the_sums_of_all_processors() {
        let folder_of = scratch();
        let (source, symbols) = folder(folder_of.path(), OWN, "0-1\n");
        let values = counter_values(&source, &symbols, "group", CounterMemory::PerProcessor);
        assert_eq!(values.unwrap(), [31, 42]);
        let (source, symbols) = folder(folder_of.path(), OWN, "0\n");
        let values = counter_values(&source, &symbols, "group", CounterMemory::PerProcessor);
        assert_eq!(values.unwrap(), [1, 2]);
        let (source, symbols) = folder(folder_of.path(), SHARED, "0-1\n");
        let values = counter_values(&source, &symbols, "group", CounterMemory::Shared);
        assert_eq!(values.unwrap(), [7, 8]);
    }

    #[test]
    fn what_is_not_there_is_told() {
        let folder_of = scratch();
        let (source, symbols) = folder(folder_of.path(), 0x1234, "0-x\n");
        let told = |group: &str, symbols: &Symbols, memory| {
            counter_values(&source, symbols, group, memory).unwrap_err().to_string()
        };
        let own = CounterMemory::PerProcessor;
        assert!(told("other", &symbols, own).contains("other/sections/.restitch.counters"));
        assert!(told("group", &symbols, own).contains("no list of numbers"));
        assert!(told("group", &symbols, CounterMemory::Shared).contains("does not hold 16 bytes at 0x1234"));
        let none = Symbols::parse("ffffffff81000000 T x\n", Path::new("list")).unwrap();
        assert!(told("group", &none, own).contains("__per_cpu_offset"));
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(processors("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(["", "1-0", "0-99999999", "a"].map(processors), [const { None }; 4]);
    }
}
