//! The records of a file, one after the other, and what stands in their place where perf has compressed them.
//!
//! Problem: `perf record -z` writes zstd data into records of their own. All of them together are one stream,
//! which is flushed after each record and never ended; a record that was compressed may begin in one and end
//! in the next.
//!
//! Idea: their contents are joined, ended, and unpacked as a whole, up to a bound. They come behind the
//! records that were not compressed (which perf makes up itself: what was mapped before it began): times put
//! all of them into order.

use std::borrow::Cow;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::{Fields, PerfDataError};

const AUXTRACE: u32 = 71;
const TRACING_DATA: u32 = 66;
const COMPRESSED: u32 = 81;
/// As [`COMPRESSED`], with its length in front and padding behind (Linux 6.16).
const COMPRESSED2: u32 = 83;

/// More than this is not unpacked, in bytes.
const MAX_UNPACKED: usize = 4 << 30;
/// The last block of a frame, which is empty, and room for a checksum.
const END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// One record.
pub(super) struct Raw<'a> {
    pub kind: u32,
    pub misc: u16,
    pub body: &'a [u8],
    /// With its header and what belongs to it behind it.
    whole: &'a [u8],
}

/// Goes through records; ends with an error where one is cut off.
pub(super) struct Walk<'a> {
    rest: Fields<'a>,
}

impl<'a> Walk<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: Fields::new(data) }
    }

    fn one(&mut self) -> Result<Raw<'a>, PerfDataError> {
        let (from, rest) = (self.rest.rest, &mut self.rest);
        let truncated = PerfDataError::Truncated { what: "last record" };
        let header = |f: &mut Fields<'a>| Some((f.u32()?, f.u16()?, f.u16()?));
        let (kind, misc, size) = header(rest).ok_or(truncated.clone())?;
        let body = u64::from(size).checked_sub(8).and_then(|len| rest.take(len)).ok_or(truncated)?;
        let mut fields = Fields::new(body);
        let behind = match kind {
            AUXTRACE => fields.u64().unwrap_or(0),
            TRACING_DATA => fields.u32().map_or(0, u64::from),
            _ => 0,
        };
        rest.take(behind).ok_or(PerfDataError::Truncated { what: "hardware trace" })?;
        Ok(Raw { kind, misc, body, whole: &from[..from.len() - rest.rest.len()] })
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<Raw<'a>, PerfDataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.rest.is_empty() {
            return None;
        }
        let one = self.one();
        if one.is_err() {
            self.rest = Fields::new(&[]);
        }
        Some(one)
    }
}

/// The records of `data` without compressed ones.
pub(super) fn unpacked(data: &[u8]) -> Result<Cow<'_, [u8]>, PerfDataError> {
    let (mut plain, mut packed) = (Vec::new(), Vec::new());
    for record in Walk::new(data) {
        let record = record?;
        match contents(&record) {
            Some(contents) if packed.is_empty() => {
                // The first one: what came before it is plain.
                let before = record.whole.as_ptr() as usize - data.as_ptr() as usize;
                plain.extend(&data[..before]);
                packed.extend(contents);
            }
            Some(contents) => packed.extend(contents),
            None if packed.is_empty() => {}
            None => plain.extend(record.whole),
        }
    }
    if packed.is_empty() {
        return Ok(Cow::Borrowed(data));
    }
    unpack(packed, &mut plain, MAX_UNPACKED)?;
    Ok(Cow::Owned(plain))
}

fn contents<'a>(record: &Raw<'a>) -> Option<&'a [u8]> {
    match record.kind {
        COMPRESSED => Some(record.body),
        COMPRESSED2 => {
            let mut fields = Fields::new(record.body);
            let len = fields.u64()?;
            fields.take(len)
        }
        _ => None,
    }
}

/// Adds to `out` what `packed` holds; `out` has at most `bound` bytes then.
fn unpack(mut packed: Vec<u8>, out: &mut Vec<u8>, bound: usize) -> Result<(), PerfDataError> {
    packed.extend(END);
    let mut source = &packed[..];
    let mut decoder = FrameDecoder::new();
    // A stream that was ended by itself leaves our end.
    while source.len() > END.len() {
        decoder.reset(&mut source).map_err(|_| PerfDataError::Packed)?;
        loop {
            let strategy = BlockDecodingStrategy::UptoBytes(1 << 20);
            decoder.decode_blocks(&mut source, strategy).map_err(|_| PerfDataError::Packed)?;
            out.extend(decoder.collect().unwrap_or_default());
            if out.len() > bound {
                return Err(PerfDataError::TooLarge { bound });
            }
            if decoder.is_finished() {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of raw blocks: magic, a window of 128 KiB, no checksum, no end.
    fn frame(blocks: &[&[u8]]) -> Vec<u8> {
        let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
        for block in blocks {
            out.extend(&(block.len() as u32 * 8).to_le_bytes()[..3]);
            out.extend(*block);
        }
        out
    }

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut out = kind.to_le_bytes().to_vec();
        out.extend([0, 0]);
        out.extend((body.len() as u16 + 8).to_le_bytes());
        out.extend(body);
        out
    }

    #[test]
    fn records_may_be_cut_anywhere() {
        let inner = [record(1, &[7; 2000]), record(2, &[8; 500])].concat();
        let stream = frame(&[&inner[..900], &inner[900..]]);
        let (first, second) = stream.split_at(1000);
        let counted = [&(second.len() as u64).to_le_bytes()[..], second, &[0; 5]].concat();
        let (before, behind) = (record(5, &[1; 16]), record(6, &[2; 8]));
        let data = [&before[..], &record(81, first), &behind, &record(83, &counted)].concat();
        let expected = [before.clone(), behind, inner].concat();
        assert_eq!(unpacked(&data).unwrap(), expected);
        assert!(matches!(unpacked(&before).unwrap(), Cow::Borrowed(_)));
        for cut in 0..first.len() {
            let _ = unpacked(&record(81, &first[..cut]));
        }
        assert_eq!(unpacked(&record(81, b"no zstd data")), Err(PerfDataError::Packed));
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        // A block of one repeated byte: 100,000 bytes of 4.
        let block = [(100_000u32 << 3 | 2).to_le_bytes()[..3].to_vec(), vec![9]].concat();
        let stream = [frame(&[]), block.repeat(50)].concat();
        let mut out = Vec::new();
        unpack(stream.clone(), &mut out, 5_000_000).unwrap();
        assert_eq!(out.len(), 5_000_000);
        let refused = unpack(stream, &mut Vec::new(), 4_000_000);
        assert_eq!(refused, Err(PerfDataError::TooLarge { bound: 4_000_000 }));
    }
}
