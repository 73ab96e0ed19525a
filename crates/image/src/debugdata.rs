//! `.gnu_debugdata`: an xz-compressed ELF file whose .symtab names the functions that .dynsym does not (MiniDebugInfo).
//!
//! The decompressor keeps the whole output in memory, so the size is found first, by walking the chunk headers of the
//! LZMA2 stream (xz file format 1.2, sections 2 and 3), and output above [`MAX_OUTPUT`] is refused.

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

/// Sum of the chunk sizes of the first block of an xz stream.
fn stated_size(xz: &[u8]) -> Option<u64> {
    let block_header_len = (usize::from(*xz.get(12)?) + 1) * 4;
    let mut at = 12 + block_header_len;
    let mut total = 0;
    loop {
        let control = *xz.get(at)?;
        let word = |i: usize| Some(usize::from(u16::from_be_bytes([*xz.get(i)?, *xz.get(i + 1)?])));
        match control {
            0 => return Some(total),
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
