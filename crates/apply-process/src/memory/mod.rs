//! A process's memory: what is mapped where, what is written there, what is searched.

pub(crate) mod below;
pub(crate) mod counter_area;
pub(crate) mod dead_stacks;
pub(crate) mod exceptions;
pub(crate) mod mapping;
pub(crate) mod memory_room;
pub(crate) mod place;
pub(crate) mod private_memory;
pub(crate) mod replacement_mapping;
pub(crate) mod search;
pub(crate) mod signal_contexts;
pub(crate) mod stray_pointers;
pub(crate) mod writing;
