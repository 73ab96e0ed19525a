//! Which build of a file its samples are of, where only a table of paths tells.

use super::ImportedModule;

/// Gives the build ids of `table` (path, build id) to files whose mappings do not tell it.
///
/// perf reads build ids when it ends, from what stands at the path then: of several files that were there one
/// after the other, it is the last one's. A path with several build ids tells nothing.
pub(super) fn name(modules: &mut [ImportedModule], table: &[(String, Vec<u8>)]) {
    let mut paths: Vec<&str> = table.iter().map(|(path, _)| path.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    for path in paths {
        // `perf record -z` (6.1) has entries without an id.
        let is_known = |id: &[u8]| id.iter().any(|byte| *byte != 0);
        let of_path_in_table = table.iter().filter(|(p, id)| p == path && is_known(id));
        let mut ids: Vec<&Vec<u8>> = of_path_in_table.map(|(_, id)| id).collect();
        ids.sort_unstable();
        ids.dedup();
        let of_path = || modules.iter().enumerate().filter(|(_, m)| m.path == path);
        ids.retain(|id| !of_path().any(|(_, m)| m.build_id.as_ref() == Some(id)));
        let last = of_path().max_by_key(|(_, m)| m.last_mapped).map(|(index, _)| index);
        if let (Some(index), [id]) = (last, &ids[..]) {
            modules[index].build_id.get_or_insert((*id).clone());
        }
    }
}
