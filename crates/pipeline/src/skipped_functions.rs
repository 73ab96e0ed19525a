//! Functions that the user wants to stay where they are (`--skip-functions`; llvm-bolt's `--skip-funcs`).

use crate::analysis::Analyzed;
use restitch_address::Svma;
use restitch_program::{FuncId, Movability};

/// What a compiler adds to the name of a function whose cold part it places elsewhere (`foo.cold`,
/// `foo.cold.1`).
const COLD: &str = ".cold";

/// Leaves the functions that are `wanted` where they are: by the name of a symbol, as the file has it
/// (mangled), their cold parts included, or by an address in the file (an Svma, `0x` and hexadecimal digits).
pub(crate) fn leave_skipped(wanted: &[String], module: &mut Analyzed) {
    for function in wanted.iter().flat_map(|name| named(name, module)).collect::<Vec<_>>() {
        module.program.functions[function.index()].movability = Movability::Skipped;
    }
}

/// Those of `wanted` that no module has, in words; `None` if there are none.
pub(crate) fn unknown<'a>(
    wanted: &[String],
    modules: impl Iterator<Item = &'a Analyzed> + Clone,
) -> Option<String> {
    let is_unknown = |name: &&String| modules.clone().all(|module| named(name, module).is_empty());
    let names: Vec<String> = wanted.iter().filter(is_unknown).map(|name| format!("\"{name}\"")).collect();
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!(
            "--skip-functions: no module that is laid out has {names}; give the names as `nm` prints them, or addresses in the file (0x401000)"
        )
    })
}

fn named(wanted: &str, module: &Analyzed) -> Vec<FuncId> {
    let at = |at: Svma| module.program.function_at(at);
    if let Some(digits) = wanted.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16)
            .ok()
            .and_then(|address| at(Svma::new(address)))
            .into_iter()
            .collect();
    }
    let is_meant =
        |name: &str| name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(COLD));
    let symbols = module.image.symbols_with_aliases().iter().filter(|symbol| is_meant(&symbol.name));
    symbols.filter_map(|symbol| at(symbol.range.start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyze_image;
    use restitch_image::Image;
    use std::sync::Arc;

    fn small() -> Analyzed {
        let small = include_bytes!("../../check/tests/data/small.elf");
        analyze_image(Arc::new(Image::parse(small.to_vec()).unwrap())).unwrap()
    }

    fn skipped(module: &Analyzed) -> Vec<usize> {
        let functions = module.program.functions.iter().enumerate();
        functions.filter(|(_, f)| f.movability == Movability::Skipped).map(|(i, _)| i).collect()
    }

    #[test]
    fn functions_are_left_by_name_and_by_address() {
        let mut module = small();
        let (index, name) = {
            let functions = module.program.functions.iter().enumerate();
            let mut named = functions.filter_map(|(i, f)| Some((i, f.name.as_deref()?.to_owned())));
            named.next().expect("it has symbols")
        };
        let other = (index + 1) % module.program.functions.len();
        let inside = module.program.functions[other].range.end - 1;
        let wanted =
            [name.clone(), format!("{:#x}", inside.get()), format!("{name}_and_more"), "0xfffffffff".into()];
        leave_skipped(&wanted, &mut module);
        let mut expected = vec![index, other];
        expected.sort_unstable();
        assert_eq!(skipped(&module), expected);
        let told = unknown(&wanted, [&module].into_iter()).expect("two are unknown");
        assert!(told.contains(&format!("\"{name}_and_more\", \"0xfffffffff\"")), "{told}");
        assert_eq!(unknown(&wanted[..2], [&module].into_iter()), None);
    }
}
