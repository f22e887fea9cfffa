//! Finds the input files.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ffi::OsStr,
    fs, io,
    path::Path,
};

use super::{Identity, Input, InputFile, Kind, tables};
use crate::{
    Error,
    limits::{DEEPEST_FOLDER, MOST_FILES},
};

/// The endings by which files of documents are known, in any case.
pub const ENDINGS: [&str; 3] = ["txt", "jsonl", "parquet"];

/// All files of documents.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) sources: Vec<InputFile>,
    /// Number of other entries in folders.
    pub(crate) left_out: usize,
}

/// Finds the files of all inputs: in the order in which they are given, those of a folder by the bytes of their paths.
/// Names that begin with a dot are left out in folders. `column`: what .parquet files have to have. Blocks.
///
/// # Errors
/// An input is not there, is neither file nor folder, has an ending that is not known, is given twice, by whatever names, or
/// holds nothing; a .parquet file is broken or has no such column of strings.
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
        } else if !about.is_file() {
            // A pipe has no end that could be waited for, and cannot be read a second time.
            let problem = "is a pipe, a socket or a device; allowed: files and folders";
            return Err(Error::unusable(Path::new(&input.name), problem));
        } else if ending(&input.path).is_some() {
            files.push(input.clone());
        } else {
            let problem = "its name ends in none of .txt, .jsonl and .parquet";
            return Err(Error::unusable(Path::new(&input.name), problem));
        }
    }
    check_given_once(&files)?;
    let sources = files.into_iter().map(|file| source(file, column)).collect::<Result<_, _>>()?;
    Ok(Found { sources, left_out })
}

/// Checks that no file is given twice, symlinks and `..` resolved.
fn check_given_once(files: &[Input]) -> Result<(), Error> {
    let mut seen = BTreeMap::new();
    for file in files {
        let real = fs::canonicalize(&file.path).map_err(Error::io("find", &file.path))?;
        match seen.entry(real) {
            Entry::Vacant(free) => drop(free.insert(&file.name)),
            Entry::Occupied(taken) => {
                let first = *taken.get();
                let also = if *first == file.name { String::new() } else { format!(": it is {first} too") };
                return Err(Error::unusable(Path::new(&file.name), format!("is given twice{also}")));
            }
        }
    }
    Ok(())
}

fn source(file: Input, column: &str) -> Result<InputFile, Error> {
    let kind = match ending(&file.path) {
        Some("txt") => Kind::Text,
        Some("jsonl") => Kind::Lines,
        _ => Kind::Table(tables::row_groups(&file, column)?),
    };
    Ok(InputFile { identity: Identity::of(&file.path, &file.name)?, path: file.path, kind })
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
        let entries = match fs::read_dir(&next) {
            Ok(entries) => entries,
            // As lost+found, which is root's.
            Err(error) if is_closed(&error) && depth > 0 && ending(&next).is_none() => {
                left_out += 1;
                continue;
            }
            Err(error) => return Err(Error::io("read", &next)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(Error::io("read", &next))?;
            let path = entry.path();
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let is_text = ending(&path).is_some();
            // A link is what it leads to.
            match fs::metadata(&path) {
                Ok(about) if about.is_dir() => open.push((path, depth + 1)),
                Ok(about) if is_text && about.is_file() => found.push(path),
                Ok(_) => left_out += 1,
                // A link that leads nowhere is no text, unless its name says that it should be one.
                Err(_) if !is_text => left_out += 1,
                Err(error) => return Err(Error::io("read", &path)(error)),
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

/// Whether this user may not look into a folder.
fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// The ending of a file of documents.
fn ending(path: &Path) -> Option<&'static str> {
    let given = path.extension().and_then(OsStr::to_str)?;
    ENDINGS.into_iter().find(|known| given.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, path::PathBuf};

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

    #[test]
    fn a_file_that_is_given_by_two_names_is_named_with_both() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &["a.txt", "b/c.txt"]);
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink(at("a.txt"), at("link.txt")).unwrap();
        std::os::unix::fs::symlink(at("b"), at("other")).unwrap();
        for (one, other) in
            [("a.txt", "b/../a.txt"), ("a.txt", "link.txt"), ("b", "other"), ("b/c.txt", "other")]
        {
            let refused = names(&[&at(one), &at(other)]).unwrap_err().to_string();
            let [one, other] = [one, other].map(|name| at(name).display().to_string());
            assert!(refused.starts_with(&other) && refused.contains("is given twice: it is "), "{refused}");
            assert!(refused.contains(&one), "{refused}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_where_it_is_given_and_left_out_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &["in/a.txt", "in/b.md"]);
        let at = |name: &str| folder.path().join(name);
        // A socket stands for a pipe too, which would wait for somebody who writes.
        let _sockets = ["pipe.txt", "in/pipe.jsonl"].map(|name| UnixListener::bind(at(name)).unwrap());
        for given in [at("pipe.txt"), PathBuf::from("/dev/null")] {
            let refused = names(&[&given]).unwrap_err().to_string();
            assert!(
                refused.contains("is a pipe, a socket or a device; allowed: files and folders"),
                "{refused}"
            );
        }
        // Links that lead nowhere: that of another ending is left out as a file of that name would be.
        for name in ["gone", "gone.md"] {
            std::os::unix::fs::symlink(at("nowhere"), at("in").join(name)).unwrap();
        }
        let found = find(&[Input::local(&at("in"))], "text").unwrap();
        assert_eq!((found.sources.len(), found.left_out), (1, 4));
        std::os::unix::fs::symlink(at("nowhere"), at("in/gone.txt")).unwrap();
        assert!(names(&[&at("in")]).unwrap_err().to_string().contains("gone.txt"));
    }
}
