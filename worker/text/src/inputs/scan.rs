//! Which files there are.

use std::{collections::BTreeSet, ffi::OsStr, fs, path::Path};

use super::{Identity, Input, Kind, Source, tables};
use crate::{
    Error,
    limits::{DEEPEST_FOLDER, MOST_FILES},
};

/// The endings by which files of documents are known, in any case.
pub const ENDINGS: [&str; 3] = ["txt", "jsonl", "parquet"];

/// All files of documents.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) sources: Vec<Source>,
    /// Files in folders that have other endings.
    pub(crate) left_out: usize,
}

/// Finds the files of all inputs: in the order in which they are given, those of a folder by the bytes of their paths.
/// Names that begin with a dot are left out in folders. `column`: what .parquet files have to have. Blocks.
///
/// # Errors
/// An input is not there, has an ending that is not known, is given twice or holds nothing; a .parquet file is broken or has
/// no such column of strings.
pub(crate) fn find(inputs: &[Input], column: &str) -> Result<Found, Error> {
    if inputs.is_empty() {
        return Err(Error::option(
            "INPUT",
            "none is given; allowed: files and folders of .txt, .jsonl and .parquet",
        ));
    }
    let mut files = Vec::new();
    let mut left_out = 0;
    for input in inputs {
        let about = fs::metadata(&input.path).map_err(Error::io("read", &input.path))?;
        if about.is_dir() {
            let before = files.len();
            left_out += walk(input, &mut files)?;
            if files.len() == before {
                let problem = "has no file that ends in .txt, .jsonl or .parquet";
                return Err(Error::unusable(Path::new(&input.name), problem));
            }
        } else if ending(&input.path).is_some() {
            files.push(input.clone());
        } else {
            let problem = "its name ends in none of .txt, .jsonl and .parquet";
            return Err(Error::unusable(Path::new(&input.name), problem));
        }
    }
    let mut seen = BTreeSet::new();
    for file in &files {
        let absolute = std::path::absolute(&file.path).map_err(Error::io("find", &file.path))?;
        if !seen.insert(absolute) {
            return Err(Error::unusable(Path::new(&file.name), "is given twice"));
        }
    }
    let sources = files.into_iter().map(|file| source(file, column)).collect::<Result<_, _>>()?;
    Ok(Found { sources, left_out })
}

fn source(file: Input, column: &str) -> Result<Source, Error> {
    let kind = match ending(&file.path) {
        Some("txt") => Kind::Text,
        Some("jsonl") => Kind::Lines,
        _ => Kind::Table(tables::row_groups(&file, column)?),
    };
    Ok(Source { identity: Identity::of(&file.path, &file.name)?, path: file.path, kind })
}

/// Adds the files below a folder, and says how many others there are.
fn walk(folder: &Input, files: &mut Vec<Input>) -> Result<usize, Error> {
    let (mut found, mut left_out) = (Vec::new(), 0);
    let mut open = vec![(folder.path.clone(), 0)];
    while let Some((next, depth)) = open.pop() {
        if depth > DEEPEST_FOLDER {
            let problem = format!(
                "lies more than {DEEPEST_FOLDER} folders deep; does a link lead back to its own folder?"
            );
            return Err(Error::unusable(&next, problem));
        }
        for entry in fs::read_dir(&next).map_err(Error::io("read", &next))? {
            let entry = entry.map_err(Error::io("read", &next))?;
            let path = entry.path();
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // A link is what it leads to.
            let about = fs::metadata(&path).map_err(Error::io("read", &path))?;
            if about.is_dir() {
                open.push((path, depth + 1));
            } else if ending(&path).is_some() {
                found.push(path);
            } else {
                left_out += 1;
            }
            if found.len() + files.len() > MOST_FILES {
                let problem = format!("has more than {MOST_FILES} files; put texts together in .jsonl files");
                return Err(Error::unusable(Path::new(&folder.name), problem));
            }
        }
    }
    found.sort_by(|one, other| one.as_os_str().as_encoded_bytes().cmp(other.as_os_str().as_encoded_bytes()));
    files.extend(found.into_iter().map(|path| {
        let below = path.strip_prefix(&folder.path).unwrap_or(&path).display();
        let name = format!("{}/{below}", folder.name.trim_end_matches('/'));
        Input { path, name }
    }));
    Ok(left_out)
}

/// The ending of a file of documents.
fn ending(path: &Path) -> Option<&'static str> {
    let given = path.extension().and_then(OsStr::to_str)?;
    ENDINGS.into_iter().find(|known| given.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn names(inputs: &[&Path]) -> Result<Vec<String>, Error> {
        let inputs: Vec<Input> = inputs.iter().map(|path| Input::local(path)).collect();
        Ok(find(&inputs, "text")?.sources.into_iter().map(|source| source.identity.name).collect())
    }

    fn write(folder: &Path, names: &[&str]) {
        for name in names {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
    }

    #[test]
    fn folders_are_walked_in_the_order_of_paths() {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            &["b.txt", "a/z.TXT", "a-b.jsonl", "a/c/d.txt", "read.me", ".git/x.txt", ".y.txt"],
        );
        let shown = folder.path().display();
        let expected = ["a-b.jsonl", "a/c/d.txt", "a/z.TXT", "b.txt"].map(|name| format!("{shown}/{name}"));
        assert_eq!(names(&[folder.path()]).unwrap(), expected);
        // As given: the order of inputs is the user's.
        let two = [folder.path().join("b.txt"), folder.path().join("a")];
        let found = names(&[&two[0], &two[1]]).unwrap();
        assert_eq!(found, [&expected[3], &expected[1], &expected[2]].map(String::as_str));
        assert_eq!(find(&[Input::local(folder.path())], "text").unwrap().left_out, 1);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &["a.txt", "none/x.md", "picture.png"]);
        let at = |name: &str| folder.path().join(name);
        for (inputs, word) in [
            (vec![at("a.txt"), folder.path().to_owned()], "given twice"),
            (vec![at("none")], "no file that ends in"),
            (vec![at("picture.png")], "ends in none of"),
            (vec![at("missing.txt")], "missing.txt"),
            (vec![], "INPUT"),
        ] {
            let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
            let refused = names(&inputs).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
        std::os::unix::fs::symlink(folder.path(), at("none/back")).unwrap();
        assert!(names(&[&at("none")]).unwrap_err().to_string().contains("link"));
    }
}
