//! The pictures of kohya's `train_network.py`: folders whose names say how often their pictures are shown, and what they
//! show where no file says it, as in `10_dog`.
//!
//! Source: `library/config_util.py` (generate_dreambooth_subsets_config_by_subdirs) and `library/train_util.py`
//! (load_dreambooth_dir, process_caption).

use ringtune_shared::files::is_image_name;

use super::options::reader::{Reader, quoted};

/// One of the folders.
struct Folder {
    path: String,
    repeats: u32,
    /// What its pictures show.
    class: String,
    pictures: usize,
    has_captions: bool,
}

/// `--train_data_dir`, with what is put around captions.
pub(super) fn pictures(reader: &mut Reader) {
    let Some(folder) = reader.text("train_data_dir").map(str::to_owned) else { return };
    let shown = "--train_data_dir";
    // A variable was told already.
    let folders = match folder.contains('$') {
        false => folders(reader, shown, "data.images", &folder),
        true => Vec::new(),
    };
    let Some(first) = folders.first() else { return };
    let places = folders
        .iter()
        .map(|folder| format!("{{ images = {}, repeats = {} }}", quoted(&folder.path), folder.repeats));
    let places = places.collect::<Vec<_>>().join(", ");
    reader.set(("data", "folders"), format!("[{places}]"));
    // Captions, or the class for all of them: a job has one or the other.
    let ends =
        ["caption_prefix", "caption_suffix"].map(|name| reader.text(name).unwrap_or("").trim().to_owned());
    let around = |middle: &str| [&ends[0], middle, &ends[1]].join(" ").trim().to_owned();
    let same_class = |folder: &Folder| !folder.has_captions && folder.class == first.class;
    if folders.iter().all(|folder| folder.has_captions) {
        let template = around("[caption]");
        if template != "[caption]" {
            write_around_captions(reader, &template);
        }
    } else if folders.iter().all(same_class) && !around(&first.class).is_empty() {
        reader.set(("data", "instance_prompt"), quoted(&around(&first.class)));
        one_tag_needs_no_order(reader, &first.class);
    } else if let Some(Folder { path, class, .. }) = folders.iter().find(|folder| !folder.has_captions) {
        let problem = format!(
            "{shown}: {path} has no captions, which only works where all folders have the same name behind the number: \
             write {class:?} into a file beside each picture, as in a.txt for a.png"
        );
        reader.refuse("", problem);
    }
}

/// The script puts them into captions before it shuffles or drops these, a template around what is left.
fn write_around_captions(reader: &mut Reader, template: &str) {
    for (option, place) in [
        ("--shuffle_caption", ("train", "shuffle_tags")),
        ("--caption_dropout_rate", ("train", "caption_dropout")),
    ] {
        if reader.has(place) {
            let problem =
                format!("{option}: write --caption_prefix and --caption_suffix into the captions beside it");
            reader.refuse("", problem);
        }
    }
    reader.set(("train", "templates"), format!("[{}]", quoted(template)));
}

/// A folder's name has no tags to shuffle, unless it has commas: then the job says that it cannot.
fn one_tag_needs_no_order(reader: &mut Reader, class: &str) {
    for (option, key) in [("--shuffle_caption", "shuffle_tags"), ("--keep_tokens", "keep_tags")] {
        if !class.contains(',') && reader.take_back(("train", key)) {
            reader.remark(format!("{option} is left out: the folder's name is the whole prompt"));
        }
    }
}

/// `--reg_data_dir`: one folder, whose name is the prompt of its pictures.
pub(super) fn class_pictures(reader: &mut Reader, shown: &str, words: &[String]) {
    for word in words {
        match folders(reader, shown, "data.class_images", word).as_slice() {
            // Told already.
            [] => {}
            [folder] => {
                reader.set(("data", "class_images"), quoted(&folder.path));
                reader.set(("data", "class_prompt"), quoted(&folder.class));
                // All of them count, and none is drawn.
                reader.set(("train", "num_class_images"), folder.pictures.to_string());
            }
            [_, _, ..] => reader.refuse(
                "data.class_images",
                format!("{shown}: {word} has several folders; pictures of one class are shown: leave one"),
            ),
        }
    }
}

/// `--masked_loss`: masks are in a folder, or in the pictures.
pub(super) fn needs_masks(reader: &mut Reader, shown: &str, _: &[String]) {
    if !reader.is_given("conditioning_data_dir") && !reader.is_given("alpha_mask") {
        reader.refuse("", format!("{shown} needs --conditioning_data_dir or --alpha_mask"));
    }
}

/// Options that say in a file of their own what is learned from.
pub(super) fn other_data(reader: &mut Reader, shown: &str, _: &[String]) {
    let problem = format!(
        "{shown}: such files are not read: leave it out, write its options into the line, and name a folder in \
         --train_data_dir whose folders are called like 10_dog"
    );
    reader.refuse("data.images", problem);
}

/// The numbered folders in one, sorted; others do not count. None: that was refused.
fn folders(reader: &mut Reader, shown: &str, key: &str, folder: &str) -> Vec<Folder> {
    let list = reader.list;
    let Some(mut names) = list(folder) else {
        reader.refuse(key, format!("{shown}: {folder}: there is no such folder"));
        return Vec::new();
    };
    names.sort();
    let folders = names.iter().filter_map(|name| {
        let (repeats, class) = name.split_once('_').unwrap_or((name, ""));
        let repeats = repeats.parse().ok().filter(|repeats| *repeats > 0)?;
        let path = format!("{}/{name}", folder.trim_end_matches('/'));
        let files = list(&path)?;
        let stems: Vec<&str> =
            files.iter().filter(|name| is_image_name(name)).filter_map(|name| stem(name)).collect();
        let is_caption = |name: &&String| name.ends_with(".txt") || name.ends_with(".caption");
        let has_captions =
            files.iter().filter(is_caption).any(|name| stem(name).is_some_and(|stem| stems.contains(&stem)));
        let (class, pictures) = (class.to_owned(), stems.len());
        let found = Folder { path, repeats, class, pictures, has_captions };
        (!stems.is_empty()).then_some(found)
    });
    let folders: Vec<Folder> = folders.collect();
    if folders.is_empty() {
        let problem = format!(
            "{shown}: {folder} holds no folder that has pictures and is called like 10_dog: how often each is shown, \
             and what it shows"
        );
        reader.refuse(key, problem);
    }
    folders
}

fn stem(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(stem, _)| stem)
}
