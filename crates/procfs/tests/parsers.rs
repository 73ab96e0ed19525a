//! The parsers of `/proc` files: examples, properties, and arbitrary bytes.

use proptest::prelude::*;
use restitch_address::{Avma, AvmaRange, FileOffset};
use restitch_procfs::{
    AuxVector, Device, Gap, GapError, GapRequest, Mapping, MappingName, Permissions, ProcessState, Side,
    Status, find_gap, find_gaps, find_places, parse_maps, parse_schedstat, parse_stat, system,
};
use std::path::Path;
use std::time::Duration;

const MAPS: &str = "\
00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/dbus daemon (v2)
00651000-00652000 rw-s 00051000 fd:1f 173522                             /tmp/a\\012b (deleted)
00e03000-00e24000 rw-p 00000000 00:00 0           [heap]
7f0000000000-7f0000021000 ---p 00000000 00:00 0 
7f0000030000-7f0000031000 rw-p 00000000 00:00 0  [anon:some name]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]
";

#[test]
fn maps_lines_are_read() {
    let maps = parse_maps(MAPS.as_bytes()).unwrap();
    assert_eq!(maps.len(), 6);
    assert_eq!(
        maps[0],
        Mapping {
            range: AvmaRange::between(Avma::new(0x400000), Avma::new(0x452000)),
            permissions: Permissions { read: true, write: false, execute: true, shared: false },
            offset: FileOffset::new(0x1000),
            device: Device { major: 8, minor: 2 },
            inode: 173521,
            name: MappingName::File { path: "/usr/bin/dbus daemon (v2)".into(), deleted: false },
        }
    );
    assert_eq!(maps[1].name, MappingName::File { path: "/tmp/a\nb".into(), deleted: true });
    assert_eq!((maps[1].device, maps[1].permissions.shared), (Device { major: 0xfd, minor: 0x1f }, true));
    assert!(maps[2].is_special("[heap]") && maps[2].path().is_none());
    assert_eq!(maps[3].name, MappingName::Anonymous);
    assert!(maps[4].is_special("[anon:some name]"));
}

#[test]
fn a_damaged_maps_line_is_named() {
    let error = parse_maps(b"00400000-00452000 r-xp 00001000 08:02 1\nnonsense\n").unwrap_err();
    assert!(error.contains("line 2") && error.contains("nonsense"), "{error}");
    for line in
        ["2000-1000 r-xp 0 0:0 0", "1000-2000 r?xp 0 0:0 0", "+100-2000 r-xp 0 0:0 0", "1000-2000 r-xp 0 0:0"]
    {
        assert!(parse_maps(line.as_bytes()).is_err(), "{line}");
    }
}

#[test]
fn stat_survives_hostile_names() {
    let line = b"42 (a) R 1 (b)) S 7 1 1 0 -1 4 5 6 7 8 11 12 0 0 20 0 1 0 9999 1 1 1 1 1 1 1 1 1 0 0 0 0 0 0 17 0 0 0 0 0 0 1 2 4096 5 6 7 8 0";
    let stat = parse_stat(line).unwrap();
    assert_eq!((stat.pid, stat.name.as_str(), stat.ppid), (42, "a) R 1 (b)", 7));
    assert_eq!((stat.user_ticks, stat.system_ticks, stat.start_time), (11, 12, 9999));
    assert_eq!(stat.state, ProcessState::Sleeping);
    assert!(stat.is_exiting && !stat.is_killed && !stat.stays_in_kernel());
    assert_eq!(stat.heap_start, Some(Avma::new(4096)));
    assert!(parse_stat(b"42 (cut off) R 1 2").unwrap_err().contains("missing"));
    assert!(parse_stat(b")(").is_err());
}

#[test]
fn status_fields_are_read() {
    let text = b"Name:\tx\nState:\tt (tracing stop)\nTgid:\t5\nPid:\t6\nPPid:\t1\nTracerPid:\t9\nUid:\t1\t2\t3\t4\nNSpid:\t6\t1\nVmSize:\t1 kB\nThreads:\t3\nSigIgn:\t0000000000000010\nSeccomp:\t2\nx86_Thread_features:\tshstk wrss \n";
    let status = Status::parse(text);
    assert_eq!((status.tgid, status.pid, status.tracer), (Some(5), Some(6), Some(9)));
    assert_eq!((status.uid, status.effective_uid, status.threads), (Some(1), Some(2), Some(3)));
    assert_eq!((status.seccomp, status.ignored_signals), (Some(2), Some(16)));
    assert_eq!(status.namespace_pids, [6, 1]);
    assert_eq!(status.state, Some(ProcessState::Traced));
    assert!(status.shadow_stack && !status.kernel_thread);
    assert!(Status::parse(b"Pid:\t2\nState:\tS (sleeping)\n").kernel_thread);
    assert!(!Status::parse(b"Pid:\t2\nState:\tZ (zombie)\n").kernel_thread);
}

#[test]
fn small_files_are_read() {
    assert_eq!(parse_schedstat(b"1500 2 3\n"), Some(Duration::from_nanos(1500)));
    assert_eq!(parse_schedstat(b"\n"), None);
    use system::{TransparentHugePages::*, parse_transparent_huge_pages as thp};
    assert_eq!(thp("always [madvise] never"), Some(Madvise));
    assert_eq!(thp("[always] madvise never"), Some(Always));
    assert_eq!(thp("always madvise never"), None);
    let words = [3u64, 0x400040, 9, 0x401000, 7, 0, 0, 0, 25, 1];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let auxv = AuxVector::parse(&bytes);
    assert_eq!(auxv.program_headers(), Some(Avma::new(0x400040)));
    assert_eq!((auxv.entry(), auxv.interpreter_base()), (Some(Avma::new(0x401000)), None));
    assert_eq!(auxv.get(25), None, "entries behind the end");
}

fn mapping(start: u64, end: u64, name: &str) -> Mapping {
    let line = format!("{start:x}-{end:x} r-xp 0 0:0 0 {name}");
    parse_maps(line.as_bytes()).unwrap().remove(0)
}

fn range(start: u64, end: u64) -> AvmaRange {
    AvmaRange::between(Avma::new(start), Avma::new(end))
}

#[test]
fn a_pie_program_gets_the_place_below_it() {
    let base = 0x5555_5555_0000;
    let maps = [mapping(base, base + 0x10000, "/x"), mapping(base + 0x20000, base + 0x40000, "[heap]")];
    let gap = find_gap(&maps, &GapRequest::near(range(base, base + 0x10000), 0x1234)).unwrap();
    assert_eq!(gap, Gap { range: AvmaRange::new(Avma::new(base - 0x2000), 0x2000), side: Side::Below });
}

#[test]
fn a_program_at_4_mib_leaves_the_heap_its_room() {
    let near = range(0x400000, 0x500000);
    let maps = [mapping(0x400000, 0x500000, "/x"), mapping(0x600000, 0x700000, "[heap]")];
    let small = find_gap(&maps, &GapRequest::near(near, 0x10000)).unwrap();
    assert_eq!(small.side, Side::Below);
    let request = GapRequest::near(near, 0x1000000);
    let large = find_gap(&maps, &request).unwrap();
    assert_eq!((large.side, large.range.start.get()), (Side::Above, 0x700000 + request.heap_room));
    let unborn = GapRequest { heap_start: Some(Avma::new(0x500000)), ..request };
    let large = find_gap(&maps[..1], &unborn).unwrap();
    assert_eq!(large.range.start.get(), 0x500000 + request.heap_room);
}

#[test]
fn a_full_neighbourhood_is_an_error_in_words() {
    let near = range(0x10_0000_0000, 0x10_0001_0000);
    let maps = [mapping(0x1000_0000, 0x10_0000_0000, "/a"), mapping(0x10_0000_0000, 0x20_0000_0000, "/x")];
    let error = find_gap(&maps, &GapRequest::near(near, 4096)).unwrap_err();
    assert!(error.to_string().contains("no 4096 free bytes within"), "{error}");
    assert_eq!(find_gap(&maps, &GapRequest::near(near, 0)), Err(GapError::Invalid));
    let odd = GapRequest { align: 3, ..GapRequest::near(near, 1) };
    assert_eq!(find_gap(&maps, &odd), Err(GapError::Invalid));
}

#[test]
fn the_stack_keeps_its_room() {
    let top = 0x7fff_0000_0000u64;
    let near = range(top - 0x8000_0000, top - 0x7fff_0000);
    let maps = [
        mapping(0x10000, top - 0x8000_0000, "/a"),
        mapping(top - 0x8000_0000, top - 0x7fff_0000, "/x"),
        mapping(top, top + 0x21000, "[stack]"),
    ];
    let request = GapRequest::near(near, 4096);
    let gap = find_gap(&maps, &request).unwrap();
    assert!(gap.range.end.get() <= top - request.stack_room);
    let greedy = GapRequest { stack_room: 0x8000_0000, ..request };
    assert!(find_gap(&maps, &greedy).is_err());
}

proptest! {
    #[test]
    fn gaps_are_free_near_and_aligned(
        starts in proptest::collection::btree_set(16u64..4000, 1..40),
        module in 0usize..40,
        pages in 1u64..200,
        align in 0u32..4,
        reach in 1u64..3000,
    ) {
        let starts: Vec<u64> = starts.into_iter().map(|page| page * 4096).collect();
        let maps: Vec<Mapping> = starts.iter().enumerate().map(|(i, &start)| {
            let end = starts.get(i + 1).map_or(start + 4096, |&next| next.min(start + 5 * 4096));
            mapping(start, end, "")
        }).collect();
        let near = maps[module % maps.len()].range;
        let request = GapRequest { align: 4096 << align, reach: reach * 4096, ..GapRequest::near(near, pages * 4096) };
        let gaps = find_gaps(&maps, &request).unwrap();
        for gap in &gaps {
            prop_assert!(gap.range.len() == pages * 4096 && gap.range.start.get().is_multiple_of(4096 << align));
            prop_assert!(maps.iter().all(|mapping| !mapping.range.overlaps(&gap.range)));
            prop_assert!(gap.range.start.get() >= 65536);
            let (low, high) = (gap.range.start.min(near.start), gap.range.end.max(near.end));
            prop_assert!(high.get() - low.get() <= request.reach);
            let below = gap.range.end <= near.start;
            prop_assert_eq!(gap.side == Side::Below, below);
        }
        // Nothing is overlooked: page-by-page search.
        let fits = |page: u64| {
            let wanted = AvmaRange::new(Avma::new(page * 4096), pages * 4096);
            let (low, high) = (wanted.start.min(near.start), wanted.end.max(near.end));
            (page * 4096).is_multiple_of(4096 << align)
                && high.get() - low.get() <= request.reach
                && maps.iter().all(|mapping| !mapping.range.overlaps(&wanted))
        };
        prop_assert_eq!(gaps.is_empty(), !(16..8000).any(fits));
        let places: Vec<Gap> = find_places(&maps, &request).unwrap().collect();
        let starts = |side| places.iter().filter(move |p| p.side == side).map(|p| p.range.start.get() / 4096);
        let own = near.start.get() / 4096;
        prop_assert!(starts(Side::Below).eq((16..own).rev().filter(|page| fits(*page))));
        prop_assert!(starts(Side::Above).eq((own..8000).filter(|page| fits(*page))));
        prop_assert!(places.iter().all(|p| p.range.len() == pages * 4096));
        prop_assert_eq!(places.first(), gaps.first());
    }
}

fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(MAPS.as_bytes().to_vec()),
        Just(b"7f00-7f01 r-xp 0 8:2 1 /x\n".to_vec()),
        Just(b"42 (n) R 1 2 3".to_vec()),
        Just(b"State:\t\nUid:\t\nTracerPid:\t-1\nSeccomp:\t999\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::collection::vec(
            prop_oneof![
                Just(b' '),
                Just(b'-'),
                Just(b':'),
                Just(b'('),
                Just(b')'),
                Just(b'\n'),
                b'0'..=b'9',
                b'a'..=b'f'
            ],
            0..60
        ),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 15_000, ..ProptestConfig::default() })]
    #[test]
    fn any_bytes_are_parsed_without_panic(bytes in hostile_bytes(), flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4)) {
        let mut bytes = bytes;
        for (at, value) in flips {
            if let Some(len) = std::num::NonZeroUsize::new(bytes.len()) {
                bytes[at % len] = value;
            }
        }
        if let Ok(maps) = parse_maps(&bytes) {
            prop_assert!(maps.iter().all(|mapping| mapping.range.start < mapping.range.end));
            let request = GapRequest::near(range(0x400000, 0x500000), 4096);
            let _ = find_gaps(&maps, &request);
            let _ = maps.iter().filter_map(Mapping::path).map(Path::to_path_buf).count();
        }
        let _ = parse_stat(&bytes);
        let _ = Status::parse(&bytes);
        let _ = parse_schedstat(&bytes);
        let _ = AuxVector::parse(&bytes);
        let _ = system::parse_transparent_huge_pages(&String::from_utf8_lossy(&bytes));
    }
}
