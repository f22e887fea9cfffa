//! What is in the folders of a job.

use std::{collections::BTreeMap, path::Path};

use ringtune_shared::ids::{CONTENT_URI_PREFIX, ContentHash};
use serde::Serialize;

use super::report::Problem;
use crate::data::images;

/// One folder, or what takes its place.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct FolderReport {
    /// The job's field.
    pub(super) field: String,
    /// The folder, or where else the pictures are.
    pub(super) source: String,
    /// At the coordinator: not looked at here.
    pub(super) uploaded: bool,
    /// Pictures that are trained on.
    pub(super) used: usize,
    /// What else lies there.
    pub(super) skipped: Vec<String>,
    /// Groups of files with the same bytes.
    pub(super) duplicates: Vec<Vec<String>>,
    /// Pictures that cannot be read.
    pub(super) broken: Vec<BrokenPicture>,
    /// Why the folder cannot be used.
    pub(super) unusable: Option<String>,
}

/// A picture that ends the job.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BrokenPicture {
    /// The file's name.
    pub(super) name: String,
    /// What is wrong with it.
    pub(super) problem: String,
}

impl FolderReport {
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        let of = |problem: &str| Problem { field: self.field.clone(), problem: problem.to_owned() };
        let broken = self.broken.iter().map(|broken| broken.problem.as_str());
        self.unusable.iter().map(String::as_str).chain(broken).map(of).collect::<Vec<_>>().into_iter()
    }
}

/// Looks at every picture of every source. Blocks.
pub(super) fn inspect(sources: &[(String, String)]) -> Vec<FolderReport> {
    sources
        .iter()
        .map(|(field, source)| {
            let mut report =
                FolderReport { field: field.clone(), source: source.clone(), ..FolderReport::default() };
            if source.starts_with(CONTENT_URI_PREFIX) {
                report.uploaded = true;
            } else {
                look(Path::new(source.strip_prefix("file://").unwrap_or(source)), &mut report);
            }
            report
        })
        .collect()
}

fn look(folder: &Path, report: &mut FolderReport) {
    let set = match images::scan(folder) {
        Ok(set) => set,
        Err(error) => {
            report.unusable = Some(error.to_string());
            return;
        }
    };
    report.skipped = set.skipped;
    let mut same: BTreeMap<[u8; 32], Vec<String>> = BTreeMap::new();
    for file in &set.images {
        match file.read().and_then(|bytes| {
            same.entry(ContentHash::of(&bytes).0).or_default().push(file.name.clone());
            images::decode(&file.name, &bytes)
        }) {
            Ok(_) => report.used += 1,
            Err(error) => {
                report.broken.push(BrokenPicture { name: file.name.clone(), problem: error.to_string() });
            }
        }
    }
    report.duplicates = same.into_values().filter(|names| names.len() > 1).collect();
    report.duplicates.sort();
}

#[cfg(test)]
mod tests {
    use image::RgbImage;

    use super::*;

    #[test]
    fn everything_about_a_folder_is_said_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let save = |name: &str, shade: u8| {
            let picture = RgbImage::from_pixel(4, 3, image::Rgb([shade; 3]));
            picture.save(folder.path().join(name)).unwrap();
        };
        save("a.png", 1);
        save("b.png", 2);
        save("c.png", 1);
        std::fs::write(folder.path().join("broken.jpg"), b"no picture").unwrap();
        std::fs::write(folder.path().join("cut.png"), b"\x89PNG\r\n\x1a\n").unwrap();
        std::fs::write(folder.path().join("notes.txt"), b"words").unwrap();
        let source = |path: &Path| ("data.images".to_owned(), path.to_str().unwrap().to_owned());
        let nowhere = folder.path().join("nowhere");
        let uploaded = ("concepts[0].images".to_owned(), ContentHash::of(b"x").uri());
        let reports = inspect(&[source(folder.path()), source(&nowhere), uploaded]);
        assert_eq!((reports[0].used, reports[0].skipped.as_slice()), (3, &["notes.txt".to_owned()][..]));
        assert_eq!(reports[0].duplicates, [["a.png", "c.png"]]);
        let broken: Vec<&str> = reports[0].broken.iter().map(|broken| broken.name.as_str()).collect();
        assert_eq!(broken, ["broken.jpg", "cut.png"]);
        assert_eq!(reports[0].problems().count(), 2);
        assert!(reports[1].problems().next().unwrap().problem.contains("nowhere"));
        assert!(reports[2].uploaded && reports[2].problems().next().is_none());
    }
}
