//! What lies at a source, by the names of its files: a pure function.

use ringtune_shared::manifest::is_image_name;
use ringtune_tables::captions::caption_file_names;

/// The table of a folder's captions, which is no file of pictures.
const METADATA: &str = "metadata.parquet";
/// Words of the names of files that are learned from, and of those that are held back: Hugging Face's.
/// Source: github.com/huggingface/datasets, `data_files.py`, `SPLIT_KEYWORDS`.
const TRAIN: [&str; 2] = ["train", "training"];
const HELD_BACK: [&str; 8] = ["test", "testing", "eval", "evaluation", "validation", "valid", "dev", "val"];
/// Names that a message lists.
const NAMED: usize = 5;

/// How pictures lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Each in a file of its own.
    Folder,
    /// In tar files.
    Shards,
    /// In .parquet files.
    Tables,
}

/// What is read of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) form: Form,
    /// The files, sorted by name.
    pub(super) files: Vec<String>,
    /// Files of pictures that are held back from learning.
    pub(super) held_back: Vec<String>,
}

/// Chooses among the files that there are. `names`: paths with slashes. `is_published`: somebody else's, with pictures beside the
/// data, perhaps, that show what it is about.
///
/// # Errors
/// There are no pictures in any form, or in two of them. The text goes on from the source's name.
pub(super) fn choose(names: &[String], is_published: bool) -> Result<Choice, String> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let file = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    let ends = |name: &str, ending: &str| {
        let file = file(name).to_ascii_lowercase();
        file.ends_with(ending) && !file.starts_with('.')
    };
    let shards = of(&names, |name| ends(name, ".tar"));
    let tables = of(&names, |name| ends(name, ".parquet") && file(name) != METADATA);
    let mut pictures = of(&names, |name| !name.contains('/') && is_image_name(name));
    if is_published && !(shards.is_empty() && tables.is_empty()) {
        pictures.clear();
    }
    let forms = [("pictures", &pictures), (".tar files", &shards), (".parquet files", &tables)];
    let there: Vec<String> =
        forms.iter().filter_map(|(what, names)| Some(format!("{what} ({})", names.first()?))).collect();
    if there.len() > 1 {
        return Err(format!("has {}; allowed: one of them, in a folder of its own", there.join(" and ")));
    }
    if let Some(picture) = pictures.first() {
        let captions = caption_file_names([*picture].into_iter().chain(pictures.iter().copied()));
        let files = of(&names, |name| pictures.binary_search(&name).is_ok() || captions.contains(name));
        return Ok(Choice { form: Form::Folder, files: owned(&files), held_back: Vec::new() });
    }
    let (form, files) = if shards.is_empty() { (Form::Tables, tables) } else { (Form::Shards, shards) };
    if files.is_empty() {
        let allowed = ".jpg, .jpeg, .png and .webp files, .tar files, or .parquet files";
        return Err(format!("has no pictures in it; it has {}, allowed: {allowed}", listed(&names)));
    }
    let is_to_train = |name: &str| has_word(name, &TRAIN);
    let some_are_to_train = files.iter().any(|name| is_to_train(name));
    let is_held_back = |name: &str| some_are_to_train && !is_to_train(name) && has_word(name, &HELD_BACK);
    let (held_back, files): (Vec<&str>, Vec<&str>) = files.iter().partition(|name| is_held_back(name));
    Ok(Choice { form, files: owned(&files), held_back: owned(&held_back) })
}

fn of<'a>(names: &[&'a str], fits: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let mut fitting: Vec<&str> = names.iter().copied().filter(|name| fits(name)).collect();
    fitting.sort_unstable();
    fitting
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Whether one of these words is in a name, between marks: "data/train-00000-of-00002.parquet".
fn has_word(name: &str, words: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    name.split(|letter: char| !letter.is_ascii_alphanumeric()).any(|part| words.contains(&part))
}

/// The first of these names, for messages.
pub(super) fn listed(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        names if names.len() > NAMED => {
            format!("{} and {} more", names[..NAMED].join(", "), names.len() - NAMED)
        }
        names => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], is_published: bool) -> Result<(Form, Vec<String>, Vec<String>), String> {
        let Choice { form, files, held_back } = choose(&owned(names), is_published)?;
        Ok((form, files, held_back))
    }

    #[test]
    fn what_lies_there_is_known_by_its_names() {
        let folder =
            ["b.png", "a.JPG", "a.txt", "metadata.jsonl", "notes.md", "sub/c.png", "metadata.parquet"];
        let files = ["a.JPG", "a.txt", "b.png", "metadata.jsonl", "metadata.parquet"];
        assert_eq!(chosen(&folder, false), Ok((Form::Folder, owned(&files), vec![])));
        let shards = ["toys-1.tar", "sub/toys-0.tar", ".toys-2.tar", "sizes.json", "sub/x.png"];
        assert_eq!(
            chosen(&shards, false),
            Ok((Form::Shards, owned(&["sub/toys-0.tar", "toys-1.tar"]), vec![]))
        );
        let tables = ["README.md", "preview.png", "data/0000.parquet"];
        assert_eq!(chosen(&tables, true), Ok((Form::Tables, owned(&["data/0000.parquet"]), vec![])));
    }

    #[test]
    fn what_is_held_back_is_left_out_where_something_is_to_train_on() {
        let names = [
            "data/test-0.parquet",
            "data/train-0.parquet",
            "data/train_test-0.parquet",
            "data/extra.parquet",
        ];
        let files = owned(&["data/extra.parquet", "data/train-0.parquet", "data/train_test-0.parquet"]);
        assert_eq!(chosen(&names, true), Ok((Form::Tables, files, owned(&["data/test-0.parquet"]))));
        // Alone it is what somebody meant.
        assert_eq!(chosen(&["test-0.tar"], false), Ok((Form::Shards, owned(&["test-0.tar"]), vec![])));
        assert_eq!(chosen(&["trainer.tar", "val.tar"], false).unwrap().2.len(), 0);
    }

    #[test]
    fn nothing_and_two_things_are_refused() {
        let two = chosen(&["a.png", "b.tar"], false).unwrap_err();
        assert!(two.contains("pictures (a.png) and .tar files (b.tar)"), "{two}");
        assert!(chosen(&["a.parquet", "b.tar"], true).is_err());
        let names: Vec<String> = (0..7).map(|number| format!("{number}.txt")).collect();
        let nothing = choose(&names, false).unwrap_err();
        assert!(nothing.contains("it has 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more"), "{nothing}");
        assert!(chosen(&["toys.tar.gz"], false).unwrap_err().contains("it has toys.tar.gz"));
        assert!(chosen(&[], false).unwrap_err().contains("it has nothing"));
    }
}
