//! A shared library of 32 bits with nothing in it, for processes that the agent is not made for: their loader
//! would complain about it on standard error, and what a build prints must not change.

const EHDR: u32 = 52;
const PHDR: u32 = 32;
const HEADERS: u32 = 3;
const DYNAMIC: u32 = EHDR + HEADERS * PHDR;
const DYNAMIC_LEN: u32 = 6 * 8;
const HASH: u32 = DYNAMIC + DYNAMIC_LEN;
const SYMBOLS: u32 = HASH + 16;
const STRINGS: u32 = SYMBOLS + 16;
const END: u32 = STRINGS + 4;

/// A shared library for i386 without code, symbols or needs.
pub fn empty_library_32() -> Vec<u8> {
    let mut file = Vec::with_capacity(END as usize);
    file.extend(*b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0");
    let (dynamic_object, i386) = (3u16, 3u16);
    [dynamic_object, i386].iter().for_each(|n| file.extend(n.to_le_bytes()));
    // Version, entry, program headers, section headers, flags.
    words(&mut file, &[1, 0, EHDR, 0, 0]);
    let sizes = [EHDR as u16, PHDR as u16, HEADERS as u16, 40, 0, 0];
    sizes.iter().for_each(|n| file.extend(n.to_le_bytes()));
    // Type, offset, address, physical address, length in the file and in memory, flags, alignment. The loader
    // writes into the dynamic section.
    words(&mut file, &[1, 0, 0, 0, END, END, 6, 0x1000]);
    words(&mut file, &[2, DYNAMIC, DYNAMIC, DYNAMIC, DYNAMIC_LEN, DYNAMIC_LEN, 6, 4]);
    // PT_GNU_STACK: without it the stack would become executable.
    words(&mut file, &[0x6474_e551, 0, 0, 0, 0, 0, 6, 16]);
    // DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL.
    words(&mut file, &[4, HASH, 5, STRINGS, 6, SYMBOLS, 10, 4, 11, 16, 0, 0]);
    // One bucket and one chain, both empty; the null symbol; an empty string.
    words(&mut file, &[1, 1, 0, 0]);
    words(&mut file, &[0; 4]);
    words(&mut file, &[0]);
    file
}

fn words(file: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_parts_are_where_it_says() {
        let file = empty_library_32();
        assert_eq!(file.len(), END as usize);
        let word = |at: u32| u32::from_le_bytes(file[at as usize..at as usize + 4].try_into().unwrap());
        assert_eq!((word(28), word(EHDR), word(EHDR + PHDR + 4)), (EHDR, 1, DYNAMIC));
        assert_eq!((word(DYNAMIC), word(DYNAMIC + 4), word(HASH)), (4, HASH, 1));
        assert_eq!(word(HASH - 8), 0, "the dynamic section ends");
    }
}
