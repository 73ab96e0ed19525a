//! `.gnu_debugdata`: an xz-compressed ELF file whose .symtab names the functions that .dynsym does not
//! (MiniDebugInfo).
//!
//! The decompressor keeps what it unpacks in memory, so the size is found first, by walking the chunk headers
//! of the LZMA2 data of all blocks (xz file format 1.2, sections 2 and 3); output above [`MAX_OUTPUT`] in sum
//! is refused.

/// Largest accepted uncompressed size: several times the largest symbol table of any distribution's package.
const MAX_OUTPUT: u64 = 256 << 20;

/// The ELF file inside a `.gnu_debugdata` section; none if it is damaged or unreasonably large.
pub(crate) fn decompress(section: &[u8]) -> Option<Vec<u8>> {
    if stated_size(section)? > MAX_OUTPUT {
        return None;
    }
    let (mut input, mut output) = (section, Vec::new());
    lzma_rs::xz_decompress(&mut input, &mut output).ok()?;
    Some(output)
}

/// Bytes of the check behind a block, by its type.
const CHECKS: [usize; 16] = [0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64];
/// Bytes of the stream header.
const STREAM_HEADER: usize = 12;

/// Sum of the chunk sizes of all blocks of an xz stream. None, too, if a block's data are packed more than
/// once.
fn stated_size(xz: &[u8]) -> Option<u64> {
    let check = CHECKS[usize::from(*xz.get(7)? & 15)];
    let (mut at, mut total) = (STREAM_HEADER, 0u64);
    // A zero stands for the index, behind the last block.
    while *xz.get(at)? != 0 {
        let filters = *xz.get(at + 1)? & 3;
        if filters != 0 {
            return None;
        }
        at += (usize::from(xz[at]) + 1) * 4;
        let (end, size) = block(xz, at)?;
        total += size;
        at = end.next_multiple_of(4) + check;
    }
    Some(total)
}

/// Where the LZMA2 chunks from `at` on end, and how much they hold.
fn block(xz: &[u8], mut at: usize) -> Option<(usize, u64)> {
    let mut total = 0;
    loop {
        let control = *xz.get(at)?;
        let word = |i: usize| Some(usize::from(u16::from_be_bytes([*xz.get(i)?, *xz.get(i + 1)?])));
        match control {
            0 => return Some((at + 1, total)),
            1 | 2 => {
                let len = word(at + 1)? + 1;
                total += len as u64;
                at += 3 + len;
            }
            0x80.. => {
                let len = (usize::from(control & 0x1f) << 16) + word(at + 1)? + 1;
                let properties = usize::from(control >= 0xc0);
                total += len as u64;
                at += 5 + properties + word(at + 3)? + 1;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An xz stream of such blocks, each of chunks that are not packed; it has no right checksums.
    fn stream(filters: u8, blocks: &[&[&[u8]]]) -> Vec<u8> {
        let mut out = b"\xfd7zXZ\0\0\x01crc ".to_vec();
        for block in blocks {
            out.extend([2, filters, 0x21, 1, 0x16, 0, 0, 0]);
            out.extend(b"crc ");
            for chunk in *block {
                out.push(1);
                out.extend((chunk.len() as u16).wrapping_sub(1).to_be_bytes());
                out.extend(*chunk);
            }
            out.push(0);
            out.resize(out.len().next_multiple_of(4), 0);
            out.extend([0; 4]);
        }
        out.push(0);
        out
    }

    #[test]
    fn the_sizes_of_all_blocks_count() {
        assert_eq!(stated_size(&stream(0, &[&[&[7; 100], &[7; 9]], &[], &[&[7; 65536]]])), Some(65645));
        assert_eq!(stated_size(&stream(1, &[&[&[7; 100]]])), None, "packed twice");
        let whole = stream(0, &[&[&[7; 10]], &[&[7; 10]]]);
        for len in 0..whole.len() {
            assert_eq!(stated_size(&whole[..len]), None, "{len}");
        }
    }

    #[test]
    fn what_would_be_too_large_in_a_later_block_is_not_unpacked() {
        // Chunks that say they unpack to 2 MiB each.
        let mut large = stream(0, &[&[&[1; 4]]]);
        large.truncate(large.len() - 1);
        large.extend([2, 0, 0x21, 1, 0x16, 0, 0, 0]);
        large.extend(b"crc ");
        large.extend([0xff, 0xff, 0xff, 0, 0, 0x5d, 0].repeat(200));
        large.extend([0, 0]);
        large.resize(large.len().next_multiple_of(4) + 8, 0);
        assert!(stated_size(&large).is_some_and(|size| size > MAX_OUTPUT));
        assert_eq!(decompress(&large), None);
    }
}
