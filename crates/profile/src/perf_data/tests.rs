use super::*;
use crate::testing::Random;
use restitch_program::Program;

const TYPE: u64 = 1 | 2 | 4 | 1 << 8 | 1 << 11;

/// Builds a small perf.data by hand.
struct File {
    data: Vec<u8>,
    sample_type: u64,
}

impl File {
    fn new() -> Self {
        Self { data: Vec::new(), sample_type: TYPE }
    }

    fn record(&mut self, kind: u32, misc: u16, body: &[u8]) {
        self.data.extend(kind.to_le_bytes());
        self.data.extend(misc.to_le_bytes());
        self.data.extend((body.len() as u16 + 8).to_le_bytes());
        self.data.extend(body);
    }

    /// Ends a record that is no sample: thread and time.
    fn other(&mut self, kind: u32, misc: u16, mut body: Vec<u8>, time: u64) {
        body.extend([0; 8]);
        body.extend(time.to_le_bytes());
        self.record(kind, misc, &body);
    }

    fn map(&mut self, time: u64, pid: u32, start: u64, len: u64, offset: u64, path: &str) {
        let build_id = [4, 0, 0, 0, 0xaa, 0xbb, 0xcc, 0xdd];
        self.map_of(time, pid, start, (len, offset), path, 1 << 14, &build_id);
    }

    /// A mapping without build id, of inode number `inode`.
    fn map_inode(&mut self, time: u64, pid: u32, start: u64, path: &str, inode: u64) {
        let identity = [[8, 0, 0, 0, 1, 0, 0, 0], inode.to_le_bytes(), [5, 0, 0, 0, 0, 0, 0, 0]].concat();
        self.map_of(time, pid, start, (0x1000, 0), path, 0, &identity);
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one record")]
    fn map_of(
        &mut self,
        time: u64,
        pid: u32,
        start: u64,
        (len, offset): (u64, u64),
        path: &str,
        misc: u16,
        identity: &[u8],
    ) {
        let mut body = [pid.to_le_bytes(), pid.to_le_bytes()].concat();
        for word in [start, len, offset] {
            body.extend(word.to_le_bytes());
        }
        body.extend(identity);
        body.resize(body.len() + 24 - identity.len(), 0);
        body.extend([5, 0, 0, 0, 2, 0, 0, 0]);
        body.extend(path.as_bytes());
        body.resize(body.len() / 8 * 8 + 8, 0);
        self.other(10, misc | 2, body, time);
    }

    fn sample(&mut self, time: u64, pid: u32, ip: u64, stack: &[(u64, u64)]) {
        let mut body = Vec::new();
        for word in [ip, u64::from(pid) | u64::from(pid) << 32, time, 1, stack.len() as u64] {
            body.extend(word.to_le_bytes());
        }
        for (from, to) in stack {
            for word in [*from, *to, 0] {
                body.extend(word.to_le_bytes());
            }
        }
        self.record(9, 2, &body);
    }

    fn attr(&self) -> Vec<u8> {
        let mut attr = vec![0u8; 128 + 16];
        attr[4] = 128;
        attr[24..32].copy_from_slice(&self.sample_type.to_le_bytes());
        attr[40..48].copy_from_slice(&(1u64 << 18).to_le_bytes());
        attr
    }

    /// As `perf record -o -` writes it.
    fn piped(&self) -> Vec<u8> {
        let mut piped = File::new();
        piped.record(64, 0, &[&self.attr()[..128], &7u64.to_le_bytes()].concat());
        // Descriptions of trace points: their length, and that many bytes behind the record.
        piped.record(66, 0, &[16, 0, 0, 0, 0, 0, 0, 0]);
        piped.data.extend([0xff; 16]);
        let id = [&[1, 0, 0, 0][..], &[7; 20], &[20, 0, 0, 0], b"/lib/second.so\0\0"].concat();
        piped.record(67, 0x8000, &id);
        [b"PERFILE2", &16u64.to_le_bytes()[..], &piped.data, &self.data].concat()
    }

    fn bytes(&self) -> Vec<u8> {
        let attr = self.attr();
        let mut id = vec![67, 0, 0, 0, 0, 0x80, 0, 0];
        id.extend([1, 0, 0, 0]);
        id.extend([7; 20]);
        id.extend([20, 0, 0, 0]);
        id.extend(b"/lib/second.so\0\0");
        id[6] = id.len() as u8;
        let (data_at, data) = (104 + attr.len(), &self.data);
        let table = data_at + data.len();
        let header = [104, 144, 104, attr.len(), data_at, data.len(), 0, 0, 1 << 2, 0, 0, 0];
        let mut bytes = b"PERFILE2".to_vec();
        header.iter().for_each(|word| bytes.extend((*word as u64).to_le_bytes()));
        bytes.extend(attr);
        bytes.extend(data);
        bytes.extend((table as u64 + 16).to_le_bytes());
        bytes.extend((id.len() as u64).to_le_bytes());
        bytes.extend(id);
        bytes
    }
}

fn offset(value: u64) -> FileOffset {
    FileOffset::new(value)
}

fn example() -> File {
    let mut file = File::new();
    // Samples stand before the mappings in the file, but later in time.
    file.sample(20, 5, 0x50_1004, &[(0x50_100e, 0x50_1000), (0x50_102e, 0x50_1000), (0x60_0000, 0x50_1020)]);
    file.map(10, 5, 0x50_1000, 0x1000, 0x3000, "/bin/first");
    file.map(11, 5, 0x60_0000, 0x1000, 0, "/lib/second.so");
    file.map(12, 5, 0x70_0000, 0x1000, 0, "[vdso]");
    file.sample(21, 5, 0x70_0000, &[]);
    file.other(7, 0, [6u32, 5, 6, 5].iter().flat_map(|w| w.to_le_bytes()).collect(), 30);
    file.sample(31, 6, 0x50_1004, &[]);
    file.other(3, 1 << 13, vec![6, 0, 0, 0, 6, 0, 0, 0, b'x', 0, 0, 0, 0, 0, 0, 0], 40);
    file.sample(41, 6, 0x50_1004, &[]);
    file.other(2, 0, [[0u8; 8], 17u64.to_le_bytes()].concat(), 50);
    file
}

#[test]
fn samples_are_placed_in_time_order() {
    let samples = import_perf_data(&example().bytes()).unwrap();
    assert_eq!((samples.samples, samples.unmapped, samples.lost), (4, 2, 17));
    assert_eq!((samples.malformed, samples.branch_stacks), (0, 1));
    assert_eq!(samples.modules.len(), 1);
    let first = &samples.modules[0];
    assert_eq!(
        (first.path.as_str(), first.build_id.as_deref()),
        ("/bin/first", Some(&[0xaa, 0xbb, 0xcc, 0xdd][..]))
    );
    assert_eq!(first.ips, BTreeMap::from([(offset(0x3004), 2)]));
    let branches = [((offset(0x300e), offset(0x3000)), 1), ((offset(0x302e), offset(0x3000)), 1)];
    assert_eq!(first.branches, BTreeMap::from(branches));
    let ranges = [((offset(0x3000), offset(0x300e)), 1), ((offset(0x3020), offset(0x302e)), 1)];
    assert_eq!(first.ranges, BTreeMap::from(ranges));
}

#[test]
fn piped_output_says_the_same() {
    let file = example();
    assert_eq!(import_perf_data(&file.piped()), import_perf_data(&file.bytes()));
    assert_eq!(import_perf_data(&file.piped()).unwrap().samples, 4);
}

#[test]
fn compressed_records_say_the_same() {
    // A zstd frame with one raw block that holds all records, never ended.
    let file = example();
    let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    packed.extend(&(file.data.len() as u32 * 8).to_le_bytes()[..3]);
    packed.extend(&file.data);
    let mut compressed = File::new();
    packed.chunks(100).for_each(|part| compressed.record(81, 0, part));
    assert_eq!(import_perf_data(&compressed.bytes()), import_perf_data(&file.bytes()));
    assert_eq!(import_perf_data(&compressed.piped()), import_perf_data(&file.bytes()));
}

#[test]
fn two_builds_at_one_path_are_two_files() {
    let path = "/lib/second.so";
    let mut file = File::new();
    for (pid, inode) in [(1, 10), (2, 11), (3, 10)] {
        file.map_inode(1, pid, 0x1000, path, inode);
        file.sample(9, pid, 0x1000 + u64::from(pid), &[]);
    }
    let (first, second) = ([4, 0, 0, 0, 1, 1, 1, 1], [4, 0, 0, 0, 2, 2, 2, 2]);
    for (pid, id) in [(4, first), (5, second), (6, first)] {
        file.map_of(1, pid, 0x1000, (0x1000, 0), path, 1 << 14, &id);
        file.sample(9, pid, 0x1000 + u64::from(pid), &[]);
    }
    let samples = import_perf_data(&file.bytes()).unwrap();
    let found: Vec<_> = samples
        .modules
        .iter()
        .map(|m| {
            let places: Vec<u64> = m.ips.keys().map(|at| at.get()).collect();
            (m.build_id.clone(), m.file.inode.map(|i| (i.device, i.number)), places)
        })
        .collect();
    let expected = [
        (None, Some(((8, 1), 10)), vec![1, 3]),
        (None, Some(((8, 1), 11)), vec![2]),
        (Some(vec![1; 4]), None, vec![4, 6]),
        (Some(vec![2; 4]), None, vec![5]),
    ];
    assert_eq!(found, expected, "the table speaks of the file that was mapped last, which has a build id");
}

#[test]
fn empty_build_ids_are_none() {
    let mut file = File::new();
    file.map_of(1, 5, 0x1000, (0x1000, 0), "/lib/second.so", 1 << 14, &[0; 4]);
    file.sample(2, 5, 0x1010, &[]);
    let mut samples = import_perf_data(&file.bytes()).unwrap();
    assert_eq!(samples.modules[0].build_id, Some(vec![7; 20]), "the table tells");
    samples.modules[0].build_id = None;
    let entries = [vec![], vec![0; 20]].map(|id| ("/lib/second.so".to_owned(), id));
    builds::name(&mut samples.modules, &entries);
    assert_eq!(samples.modules[0].build_id, None);
}

#[test]
fn the_table_speaks_of_what_was_mapped_last() {
    let mut file = File::new();
    for (time, pid, inode) in [(1, 1, 10), (2, 2, 11)] {
        file.map_inode(time, pid, 0x1000, "/lib/second.so", inode);
        file.sample(9, pid, 0x1000, &[]);
    }
    let samples = import_perf_data(&file.bytes()).unwrap();
    let ids: Vec<_> = samples.modules.iter().map(|m| m.build_id.clone()).collect();
    assert_eq!(ids, [None, Some(vec![7; 20])]);
    let mut sum = samples.modules[0].clone();
    sum.add(&samples.modules[1]);
    assert_eq!(sum.ips, BTreeMap::from([(offset(0), 2)]));
}

#[test]
fn branch_stacks_become_a_profile() {
    let program = Program::from_text(
        "function 0x1000..0x1030 f movable\n 0x1000 +16 entry cond(4)/2 -> 0x1000\n 0x1010 +16 - return/1\n 0x1020 +16 target jump/2 -> 0x1000\n",
    )
    .unwrap();
    let samples = import_perf_data(&example().bytes()).unwrap();
    let place = |at: FileOffset| Some(Svma::new(at.get() - 0x2000));
    let placed = samples.modules[0].to_svma(place);
    assert_eq!((placed.ips.get(&Svma::new(0x1004)), placed.unplaced), (Some(&2), 0));
    let (profile, report) = placed.branches.to_profile(&program);
    assert_eq!(profile.blocks, [2, 0, 1]);
    assert_eq!(profile.edges, [0, 1, 1]);
    assert_eq!((report.used_ranges, report.broken_ranges), (2, 0));
    assert_eq!(samples.modules[0].to_svma(|_| None).unplaced, 6);
}

#[test]
fn a_build_id_comes_from_the_table_where_the_mapping_has_none() {
    let mut file = File::new();
    let mut body = [5u32.to_le_bytes(), 5u32.to_le_bytes()].concat();
    [0x1000u64, 0x1000, 0].iter().for_each(|w| body.extend(w.to_le_bytes()));
    body.extend(b"/lib/second.so\0\0");
    file.other(1, 2, body, 1);
    file.sample(2, 5, 0x1010, &[]);
    let samples = import_perf_data(&file.bytes()).unwrap();
    assert_eq!(samples.modules[0].build_id, Some(vec![7; 20]));
}

#[test]
fn a_later_mapping_covers_an_earlier_one() {
    let mut file = File::new();
    file.map(1, 5, 0x1000, 0x3000, 0, "/a");
    file.map(2, 5, 0x2000, 0x1000, 0, "/b");
    for ip in [0x1000, 0x2000, 0x3000, 0x4000] {
        file.sample(3, 5, ip, &[]);
    }
    let samples = import_perf_data(&file.bytes()).unwrap();
    let ips: Vec<_> =
        samples.modules.iter().map(|m| m.ips.keys().map(|o| o.get()).collect::<Vec<_>>()).collect();
    assert_eq!(ips, [vec![0, 0x2000], vec![0]]);
    assert_eq!(samples.unmapped, 1);
}

#[test]
fn what_cannot_be_read_says_why() {
    let bytes = example().bytes();
    assert_eq!(import_perf_data(b"\x7fELF"), Err(PerfDataError::Magic));
    for len in 8..bytes.len() - 90 {
        assert!(matches!(import_perf_data(&bytes[..len]), Err(PerfDataError::Truncated { .. })), "{len}");
    }
    let mut piped = bytes.clone();
    piped[8] = 16;
    assert!(import_perf_data(&piped).is_err(), "its tables are no records");
    let mut file = example();
    file.record(81, 0, &[0; 16]);
    assert_eq!(import_perf_data(&file.bytes()), Err(PerfDataError::Packed));
    let mut odd = example();
    odd.sample_type |= 1 << 5;
    assert_eq!(import_perf_data(&odd.bytes()).unwrap().malformed, 4, "no sample has room for a call chain");
}

#[test]
fn fuzz_never_panics() {
    let mut random = Random::new(11);
    let original = example().bytes();
    let until = std::time::Instant::now() + std::time::Duration::from_millis(800);
    let mut rounds = 0u32;
    while rounds < 1000 || std::time::Instant::now() < until {
        let mut bytes = original.clone();
        for _ in 0..1 + random.below(8) {
            let at = 8 + random.below(bytes.len() - 8);
            bytes[at] = [random.bits() as u8, 0, 0xff, 0x7f][random.below(4)];
        }
        let cut = random.below(40);
        bytes.truncate(bytes.len() - cut.saturating_sub(30));
        if let Ok(samples) = import_perf_data(&bytes) {
            assert!(samples.samples <= 4);
        }
        let noise: Vec<u8> = (0..random.below(300)).map(|_| random.bits() as u8).collect();
        assert_eq!(import_perf_data(&noise), Err(PerfDataError::Magic));
        rounds += 1;
    }
}

/// Files of the machine's own perf, where there is one that may record: as they are, compressed, and as they
/// come out of a pipe.
#[test]
fn real_files_are_read() {
    for how in [&["-o"][..], &["-z", "-o"], &["--buildid-mmap", "-o"], &["-o", "-"]] {
        let path = std::env::temp_dir().join(format!("restitch-perf-data-{}", std::process::id()));
        let mut command = std::process::Command::new("perf");
        command.args(["record", "-q", "-e", "cpu-clock", "-F", "5000"]).args(how);
        let piped = how.contains(&"-");
        if !piped {
            command.arg(&path);
        }
        command.args(["--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]);
        let recorded = command.output();
        let bytes =
            if piped { recorded.as_ref().ok().map(|o| o.stdout.clone()) } else { std::fs::read(&path).ok() };
        let _ = std::fs::remove_file(&path);
        if !recorded.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: perf cannot record here ({how:?})");
            continue;
        }
        let samples = import_perf_data(&bytes.unwrap()).unwrap();
        assert!(samples.samples > 0 && samples.malformed == 0 && samples.branch_stacks == 0, "{samples:?}");
        let hot = samples.modules.iter().max_by_key(|m| m.ips.values().sum::<u64>()).unwrap();
        assert!(hot.path.starts_with('/'), "{}", hot.path);
        // perf tells what it found out at its end to a file only, and not where it compresses.
        assert!(hot.build_id.is_some() || piped || how.contains(&"-z"), "{how:?} {}", hot.path);
    }
}
