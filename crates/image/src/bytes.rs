//! Little-endian reads from foreign bytes that never panic, whatever the offset.

/// `len` bytes at `at`, if all are there.
pub fn slice(data: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let from = usize::try_from(at).ok()?;
    let to = usize::try_from(at.checked_add(len)?).ok()?;
    data.get(from..to)
}

fn array<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The number of 16 bits at `at`.
pub fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    array(data, at).map(u16::from_le_bytes)
}

/// The number of 32 bits at `at`.
pub fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    array(data, at).map(u32::from_le_bytes)
}

/// The signed number of 32 bits at `at`.
pub fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    array(data, at).map(i32::from_le_bytes)
}

/// The number of 64 bits at `at`.
pub fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    array(data, at).map(u64::from_le_bytes)
}

/// The signed number of 64 bits at `at`.
pub fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    array(data, at).map(i64::from_le_bytes)
}

/// The NUL-terminated string at `at`; without a terminator it is none. Bytes that are not UTF-8 are replaced.
pub fn c_string(data: &[u8], at: u64) -> Option<std::borrow::Cow<'_, str>> {
    let rest = data.get(usize::try_from(at).ok()?..)?;
    let len = rest.iter().position(|&b| b == 0)?;
    Some(String::from_utf8_lossy(&rest[..len]))
}
