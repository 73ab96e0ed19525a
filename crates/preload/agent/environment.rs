//! Environments for other programs: whether `LD_PRELOAD` names this library, and copies in which it does, or
//! does not.
//!
//! Copies lie on the stack: a child of `vfork` must leave no traces in its parent's memory.

use core::mem::MaybeUninit;

pub type Text = *const u8;
pub type List = *const Text;

/// Environments with more entries are passed on as they are.
const MOST_ENTRIES: usize = 2046;
/// Values of `LD_PRELOAD` that are longer, with the agent's path, are passed on as they are.
const MOST_BYTES: usize = 4096;
const NAME: &[u8] = b"LD_PRELOAD=";

/// The number of a variable's entry and its value; `name` ends in the equals sign.
///
/// # Safety
/// `given` is null or a list of texts that ends in a null pointer.
pub unsafe fn value(given: List, name: &[u8]) -> Option<(usize, Text)> {
    if given.is_null() {
        return None;
    }
    // SAFETY: the list ends in a null pointer, its texts in zero bytes.
    let entry = |i: usize| unsafe { *given.add(i) };
    let mut all = (0..).take_while(|i| !entry(*i).is_null());
    // SAFETY: as above; a text that begins with the name is at least as long.
    all.find_map(|i| unsafe { begins_with(entry(i), name).then(|| (i, entry(i).add(name.len()))) })
}

/// Room for a copy of an environment with another `LD_PRELOAD`.
pub struct Environment {
    entries: [MaybeUninit<Text>; MOST_ENTRIES + 2],
    preload: [u8; MOST_BYTES],
}

impl Environment {
    pub const fn new() -> Self {
        Self { entries: [MaybeUninit::uninit(); MOST_ENTRIES + 2], preload: [0; MOST_BYTES] }
    }

    /// Whether the `LD_PRELOAD` of `given` names `own`.
    ///
    /// # Safety
    /// `given` is null or a list of texts that ends in a null pointer, and `own` ends in a zero byte.
    pub unsafe fn names(given: List, own: Text) -> bool {
        // SAFETY: promised by the caller.
        unsafe { value(given, NAME).is_some_and(|(_, list)| names(list, own)) }
    }

    /// A copy of `given` with `own` behind what is preloaded there; nothing if it is too large.
    ///
    /// # Safety
    /// As above.
    pub unsafe fn with(&mut self, given: List, own: Text) -> Option<List> {
        let mut len = 0;
        self.put(&mut len, NAME)?;
        // SAFETY: promised by the caller.
        let before = unsafe { value(given, NAME) };
        if let Some((_, theirs)) = before {
            // SAFETY: ends in a zero byte.
            unsafe { self.put_text(&mut len, theirs)? };
            if len > NAME.len() {
                self.put(&mut len, b":")?;
            }
        }
        // SAFETY: ends in a zero byte.
        unsafe { self.put_text(&mut len, own)? };
        self.put(&mut len, b"\0")?;
        // SAFETY: promised by the caller.
        unsafe { self.copy(given, before.map(|(place, _)| place), true) }
    }

    /// A copy of `given` that does not preload `own`: without the variable, if that is all of it; nothing if
    /// it is too large.
    ///
    /// # Safety
    /// As above.
    pub unsafe fn without(&mut self, given: List, own: Text) -> Option<List> {
        let mut len = 0;
        self.put(&mut len, NAME)?;
        // SAFETY: promised by the caller.
        let (place, theirs) = unsafe { value(given, NAME)? };
        // SAFETY: both end in zero bytes.
        let is_any_left = unsafe { self.put_others(&mut len, theirs, own)? };
        self.put(&mut len, b"\0")?;
        // SAFETY: promised by the caller.
        unsafe { self.copy(given, Some(place), is_any_left) }
    }

    /// Copies the entries of `given`, with our `LD_PRELOAD` (or without one) for that at `place`, or behind
    /// all.
    ///
    /// # Safety
    /// As above.
    unsafe fn copy(&mut self, given: List, place: Option<usize>, is_preloading: bool) -> Option<List> {
        let preload = is_preloading.then_some(self.preload.as_ptr());
        let (mut read, mut count) = (0, 0);
        // SAFETY: the list ends in a null pointer.
        while !given.is_null()
            && let entry = unsafe { *given.add(read) }
            && !entry.is_null()
        {
            if let Some(entry) = if place == Some(read) { preload } else { Some(entry) } {
                self.entries.get_mut(count)?.write(entry);
                count += 1;
            }
            read += 1;
        }
        if let (None, Some(entry)) = (place, preload) {
            self.entries.get_mut(count)?.write(entry);
            count += 1;
        }
        self.entries.get_mut(count)?.write(core::ptr::null());
        Some(self.entries.as_ptr().cast())
    }

    fn put(&mut self, len: &mut usize, bytes: &[u8]) -> Option<()> {
        for byte in bytes {
            *self.preload.get_mut(*len)? = *byte;
            *len += 1;
        }
        Some(())
    }

    /// # Safety
    /// `text` ends in a zero byte.
    unsafe fn put_text(&mut self, len: &mut usize, mut text: Text) -> Option<()> {
        // SAFETY: the end has not been reached.
        while let byte = unsafe { *text }
            && byte != 0
        {
            self.put(len, &[byte])?;
            // SAFETY: as above.
            text = unsafe { text.add(1) };
        }
        Some(())
    }

    /// Puts all of a list of paths but `path`; whether there were others.
    ///
    /// # Safety
    /// Both end in zero bytes.
    unsafe fn put_others(&mut self, len: &mut usize, mut list: Text, path: Text) -> Option<bool> {
        let (mut is_any, mut between) = (false, b':');
        loop {
            // SAFETY: the end has not been passed: it ends a path, and the loop.
            unsafe {
                let is_kept = !begins_with_path(list, path);
                if is_kept && core::mem::replace(&mut is_any, true) {
                    self.put(len, &[between])?;
                }
                while !ends_path(*list) {
                    if is_kept {
                        self.put(len, &[*list])?;
                    }
                    list = list.add(1);
                }
                between = *list;
                if between == 0 {
                    return Some(is_any);
                }
                list = list.add(1);
            }
        }
    }
}

/// # Safety
/// `text` ends in a zero byte.
unsafe fn begins_with(text: Text, prefix: &[u8]) -> bool {
    // A zero byte differs from every byte of the prefix, and ends the comparison.
    // SAFETY: no byte behind the end is read.
    prefix.iter().enumerate().all(|(i, byte)| unsafe { *text.add(i) } == *byte)
}

/// Paths stand between colons or blanks.
const fn ends_path(byte: u8) -> bool {
    matches!(byte, 0 | b':' | b' ')
}

/// Whether the first of a list of paths is `path`.
///
/// # Safety
/// Both end in zero bytes.
unsafe fn begins_with_path(list: Text, path: Text) -> bool {
    let mut i = 0;
    // SAFETY: neither end is passed: a difference or the path's end stops the comparison.
    unsafe {
        while *path.add(i) != 0 && *list.add(i) == *path.add(i) {
            i += 1;
        }
        *path.add(i) == 0 && ends_path(*list.add(i))
    }
}

/// Whether a list of paths holds `path`.
///
/// # Safety
/// Both end in zero bytes.
unsafe fn names(mut list: Text, path: Text) -> bool {
    loop {
        // SAFETY: the end has not been passed: it ends a path, and the loop.
        unsafe {
            if begins_with_path(list, path) {
                return true;
            }
            while !ends_path(*list) {
                list = list.add(1);
            }
            if *list == 0 {
                return false;
            }
            list = list.add(1);
        }
    }
}
