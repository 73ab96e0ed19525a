//! Switches of the whole system that decide what a tracer or profiler may do.

use std::path::Path;

fn read_number(path: &str) -> Option<i32> {
    std::fs::read_to_string(Path::new(path)).ok()?.trim().parse().ok()
}

/// `kernel.yama.ptrace_scope`: 0 classic, 1 only descendants, 2 only root, 3 nobody. `None` without Yama.
pub fn ptrace_scope() -> Option<i32> {
    read_number("/proc/sys/kernel/yama/ptrace_scope")
}

/// `kernel.perf_event_paranoid`: -1 everything, 0, 1, 2 user code of own processes only, 3 and 4 (Debian)
/// nothing.
pub fn perf_event_paranoid() -> Option<i32> {
    read_number("/proc/sys/kernel/perf_event_paranoid")
}

/// `vm.mmap_min_addr`: the lowest address that can be mapped; 65536 where it cannot be read.
pub fn mmap_min_addr() -> u64 {
    read_number("/proc/sys/vm/mmap_min_addr").and_then(|n| u64::try_from(n).ok()).unwrap_or(65536)
}

/// `vm.max_map_count`: how many mappings a process may have; `None` where it cannot be read.
pub fn max_map_count() -> Option<usize> {
    read_number("/proc/sys/vm/max_map_count").and_then(|n| usize::try_from(n).ok())
}

/// Memory in bytes that programs can get without swapping (`MemAvailable` of `/proc/meminfo`); `None` where
/// the system does not tell.
pub fn available_memory() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The kernel's version: major and minor number.
pub fn kernel_version() -> Option<(u32, u32)> {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A cache of the first processor, as the kernel describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuCache {
    /// Level, from 1.
    pub level: u32,
    /// Whether it holds instructions (alone or with data).
    pub instructions: bool,
    /// Sets.
    pub sets: usize,
    /// Entries of each set.
    pub ways: usize,
    /// Bytes of a line.
    pub line: u64,
}

/// The caches of the first processor; empty where the kernel does not tell.
pub fn cpu_caches() -> Vec<CpuCache> {
    (0..16)
        .map_while(|i| cpu_cache(Path::new(&format!("/sys/devices/system/cpu/cpu0/cache/index{i}"))))
        .collect()
}

fn cpu_cache(directory: &Path) -> Option<CpuCache> {
    let text = |name: &str| std::fs::read_to_string(directory.join(name)).ok().map(|t| t.trim().to_owned());
    Some(CpuCache {
        level: text("level")?.parse().ok()?,
        instructions: text("type")? != "Data",
        sets: text("number_of_sets")?.parse().ok()?,
        ways: text("ways_of_associativity")?.parse().ok()?,
        line: text("coherency_line_size")?.parse().ok()?,
    })
}

/// Vendor, family and model of the first processor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CpuModel {
    /// As in `/proc/cpuinfo`: `GenuineIntel`, `AuthenticAMD`, ...
    pub vendor: String,
    /// Family.
    pub family: u32,
    /// Model.
    pub model: u32,
}

/// What `/proc/cpuinfo` says of the first processor; empty where it does not tell.
pub fn cpu_model() -> CpuModel {
    std::fs::read_to_string("/proc/cpuinfo").map(|text| parse_cpu_model(&text)).unwrap_or_default()
}

/// Reads the first processor's lines of `/proc/cpuinfo`.
pub fn parse_cpu_model(text: &str) -> CpuModel {
    let value = |key: &str| {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.map(|(k, v)| (k.trim(), v.trim())).find(|(k, _)| *k == key).map_or("", |(_, v)| v)
    };
    let number = |key| value(key).parse().unwrap_or(0);
    CpuModel { vendor: value("vendor_id").to_owned(), family: number("cpu family"), model: number("model") }
}

/// When memory is backed by huge pages without being asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransparentHugePages {
    /// For all suitable anonymous memory.
    Always,
    /// Where the program asked with `madvise(MADV_HUGEPAGE)`.
    Madvise,
    /// Never.
    Never,
}

/// The setting of transparent huge pages, `None` where the kernel has none.
pub fn transparent_huge_pages() -> Option<TransparentHugePages> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    parse_transparent_huge_pages(&text)
}

/// Parses the file's content, in which the chosen word stands in brackets: `always [madvise] never`.
pub fn parse_transparent_huge_pages(text: &str) -> Option<TransparentHugePages> {
    let (_, chosen) = text.split_once('[')?;
    match chosen.split_once(']')?.0 {
        "always" => Some(TransparentHugePages::Always),
        "madvise" => Some(TransparentHugePages::Madvise),
        "never" => Some(TransparentHugePages::Never),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal: 99999999 kB\nMemAvailable:   1024 kB\nBuffers: 1 kB\n";
        assert_eq!(parse_available(text), Some(1 << 20));
        for odd in ["", "MemAvailable:", "MemAvailable: x kB", "MemAvailable: 18446744073709551615 kB"] {
            assert_eq!(parse_available(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_first_processor_is_read_and_anything_else_is_empty() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: x\n\ncpu family\t: 6\n";
        let expected = CpuModel { vendor: "AuthenticAMD".into(), family: 25, model: 17 };
        assert_eq!(parse_cpu_model(text), expected);
        assert_eq!(parse_cpu_model("no colon\ncpu family: many\n"), CpuModel::default());
    }
}
