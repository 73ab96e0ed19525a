//! Language-specific data areas byte by byte.

use restitch_address::{Svma, SvmaRange};
use restitch_cfi::*;

const FUNCTION: SvmaRange = SvmaRange::new(Svma::new(0x1000), 0x100);

fn site(start: u64, len: u64, pad: Option<u64>, action: u64) -> LsdaCallSite {
    let range = SvmaRange::new(Svma::new(start), len);
    LsdaCallSite { range, landing_pad: pad.map(Svma::new), action }
}

fn parse(at: u64, bytes: &[u8]) -> Result<Lsda, CfiError> {
    Lsda::parse(&Bytes { at: Svma::new(at), bytes }, Svma::new(at), FUNCTION)
}

/// What GCC writes for `try { f(); } catch (A&) {} catch (...) {}` in a function with an exception
/// specification.
#[test]
fn the_common_form() {
    let mut bytes = vec![0xff, 0x9b, 0, 0x01, 8];
    bytes.extend([0x10, 5, 0x40, 5]); // f(): pad at 0x1040, action record at byte 4
    bytes.extend([0x20, 0x30, 0, 0]); // no pad
    bytes.extend([0x7f, 0]); // byte 0: specification 1, end
    bytes.extend([2, 0x7d]); // byte 2: type 2, then the record 3 bytes before byte 3
    bytes.extend([1, 0x7d]); // byte 4: type 1, then the record 3 bytes before byte 5
    let types_at = 0x2000 + bytes.len() as u64;
    bytes.extend((0x5000i64 - types_at as i64).to_le_bytes()[..4].iter()); // type 2
    bytes.extend([0; 4]); // type 1: everything
    bytes[2] = (bytes.len() - 3) as u8;
    bytes.extend([1, 2, 0]); // specification 1: types 1 and 2
    bytes.extend([0xaa; 5]); // the next LSDA
    let lsda = parse(0x2000, &bytes).unwrap();
    let slot = TypeInfo { indirect: true, address: Svma::new(0x5000) };
    assert_eq!(
        lsda,
        Lsda {
            call_sites: vec![site(0x1010, 5, Some(0x1040), 5), site(0x1020, 0x30, None, 0)],
            actions: vec![0x7f, 0, 2, 0x7d, 1, 0x7d],
            types: vec![None, Some(slot)],
            filters: vec![1, 2, 0],
            indirect_types: true,
        }
    );
    assert_eq!(lsda.landing_pads().collect::<Vec<_>>(), [Svma::new(0x1040)]);
    assert_eq!(lsda.call_site_at(Svma::new(0x1014)), Some(&lsda.call_sites[0]));
    assert_eq!(lsda.call_site_at(Svma::new(0x1015)), None);
}

#[test]
fn fixed_size_call_sites_and_an_explicit_pad_base() {
    // LPStart absolute udata4, types absolute udata4 (a program that is not position-independent).
    let mut bytes = vec![0x03];
    bytes.extend(0x4000u32.to_le_bytes());
    bytes.extend([0x03, 0, 0x03, 13]);
    for word in [0x10u32, 5, 0x40] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.push(1);
    bytes.extend([1, 0]);
    bytes.extend(0x6000u32.to_le_bytes());
    bytes[6] = (bytes.len() - 7) as u8;
    let lsda = parse(0x2000, &bytes).unwrap();
    assert_eq!(lsda.call_sites, [site(0x1010, 5, Some(0x4040), 1)]);
    assert_eq!(lsda.types, [Some(TypeInfo { indirect: false, address: Svma::new(0x6000) })]);
    assert!(!lsda.indirect_types && lsda.filters.is_empty());
}

#[test]
fn the_pad_base_is_written_only_where_a_pad_begins_the_run() {
    let lsda = Lsda {
        call_sites: Vec::new(),
        actions: Vec::new(),
        types: Vec::new(),
        filters: Vec::new(),
        indirect_types: false,
    };
    let at = Svma::new(0x2000);
    let start = FUNCTION.start;
    for (pad, explicit) in
        [(0x1001, false), (0x1000, true), (0x800, false), (0x9000_0000 - 0x2000_0000, false)]
    {
        let sites = [site(0x1000, 0x20, Some(pad), 0), site(0x1020, 0xe0, Some(0x1080), 0)];
        let bytes = write_lsda(at, start, &sites, &lsda).unwrap();
        assert_eq!(bytes[0] != 0xff, explicit, "{pad:#x}");
        assert_eq!(parse(0x2000, &bytes).unwrap().call_sites, sites);
    }
}

#[test]
fn the_length_of_signed_call_sites_is_the_same_number_signed_and_unsigned() {
    let lsda = parse(0x2000, &[0xff, 0xff, 1, 0]).unwrap();
    for count in [5, 9, 12, 200] {
        let sites: Vec<_> = (0..count).map(|i| site(0x1000 + i, 1, Some(0xfe0), 0)).collect();
        let bytes = write_lsda(Svma::new(0x2000), FUNCTION.start, &sites, &lsda).unwrap();
        assert_eq!(bytes[..3], [0xff, 0xff, 9], "signed numbers");
        let last = bytes[3..].iter().position(|byte| byte & 0x80 == 0).unwrap();
        // Bit 6 of the last byte is the sign.
        assert_eq!(bytes[3 + last] & 0x40, 0, "{count}: {:x?}", &bytes[3..=3 + last]);
        assert_eq!(parse(0x2000, &bytes).unwrap().call_sites, sites);
    }
    // Where no pad lies in front, tables are as compilers write them.
    let bytes =
        write_lsda(Svma::new(0x2000), FUNCTION.start, &[site(0x1000, 4, Some(0x1040), 0)], &lsda).unwrap();
    assert_eq!(bytes, [0xff, 0xff, 1, 4, 0, 4, 0x40, 0]);
}

#[test]
fn what_contradicts_itself_is_refused() {
    // An action without a type table; a type beyond the table; a chain that leaves the table; unsorted call
    // sites.
    for bytes in [
        &[0xff, 0xff, 1, 4, 0, 5, 9, 1, 1, 0][..],
        &[0xff, 0x9b, 12, 1, 4, 0, 5, 9, 1, 0x3f, 0, 0, 0, 0, 0][..],
        &[0xff, 0xff, 1, 4, 0, 5, 9, 1, 0, 0x70][..],
        &[0xff, 0xff, 1, 8, 0x10, 5, 9, 0, 0, 5, 9, 0][..],
        &[0xff, 0xff, 1, 4, 0xff, 5, 9, 0][..],
        &[0xff, 0xff, 1, 90, 0][..],
    ] {
        let error = parse(0x2000, bytes).unwrap_err();
        assert!(
            matches!(error, CfiError::Malformed { .. } | CfiError::Truncated { .. }),
            "{bytes:x?} {error}"
        );
    }
    let error = parse(0x2000, &[]).unwrap_err();
    assert!(matches!(error, CfiError::Unmapped { .. }), "{error}");
}

#[test]
fn what_cannot_be_written_is_refused() {
    let lsda = parse(0x2000, &[0xff, 0xff, 1, 4, 0, 5, 9, 1, 0, 0]).unwrap();
    let start = FUNCTION.start;
    let write = |at: u64, sites: &[LsdaCallSite]| write_lsda(Svma::new(at), start, sites, &lsda);
    assert!(write(0x2000, &lsda.call_sites).is_ok());
    let inexpressible =
        |sites: &[LsdaCallSite]| matches!(write(0x2000, sites), Err(CfiError::Inexpressible { .. }));
    assert!(inexpressible(&[site(0xfff, 5, None, 0)]));
    assert!(inexpressible(&[site(0x1010, 5, None, 0), site(0x1000, 5, None, 0)]));
    assert!(inexpressible(&[site(0x1010, 5, None, 0), site(0x1014, 5, None, 0)]));
    assert!(inexpressible(&[site(0x1010, 5, None, 3)]));
    let typed = Lsda { types: vec![Some(TypeInfo { indirect: false, address: start })], ..lsda.clone() };
    let far = write_lsda(Svma::new(0x2_0000_0000), start, &lsda.call_sites, &typed);
    assert!(matches!(far, Err(CfiError::OutOfReach { .. })));
}
