//! Lists the page's files, so that they are in the program: all of `page/` that is no test.
use std::{env, error::Error, fmt::Write as _, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=page");
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("page");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| format!("{name:?} is not UTF-8"))?;
        if entry.file_type()?.is_file() && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    let mut list = "&[\n".to_owned();
    for name in names {
        let path = folder.join(&name);
        writeln!(list, "    ({name:?}, include_bytes!({path:?})),")?;
    }
    list.push(']');
    fs::write(Path::new(&env::var("OUT_DIR")?).join("page.rs"), list)?;
    Ok(())
}
