//! Paths of uploaded contents. `job.toml` of a run names contents by hash, of a coordinator that is gone with the run. The
//! command keeps the files' paths beside it, so that the job can be run again.

use std::{collections::BTreeMap, fs, io, path::Path};

use ringtune_shared::{
    files::write_atomically,
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::{JobFile, JobSpec},
};

use crate::images::ImageFolder;

/// The file beside job.toml: an object of paths by the places that job.toml has.
pub const FILE: &str = "job-sources.json";
/// Largest file of paths: more than any job needs.
const LARGEST_FILE: u64 = 4 << 20;

/// What a place of a job is one of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sort {
    /// A folder of pictures; the column of their captions, where these are used.
    Pictures(Option<String>),
    Embedding,
    /// A file whose place has its name in it too.
    Drawn,
    Checkpoint,
}

/// Visits every place of a job that may be a content of the coordinator, with its field.
fn visit(spec: &mut JobSpec, mut act: impl FnMut(Sort, &str, &mut String)) {
    let uses = spec.image_uses();
    for ((field, place), used) in spec.image_sources().into_iter().zip(uses) {
        act(Sort::Pictures(used.captions), &field, place);
    }
    for embedding in spec.initializer_embeddings() {
        act(Sort::Embedding, &embedding.field, embedding.place);
    }
    for JobFile { field, place, .. } in spec.files() {
        act(Sort::Drawn, &field, place);
    }
    let option = spec.resume_option();
    if let (Some(option), Some(place)) = (option, spec.resume_from_mut()) {
        act(Sort::Checkpoint, option, place);
    }
}

/// What of a job is uploaded, and how it is used: jobs in which this is equal have the same contents.
pub fn contents_of(spec: &JobSpec) -> String {
    format!("{:?} {:?}", places(spec), spec.image_uses())
}

/// Puts the contents of `uploaded`, of which [`contents_of`] was equal, in a job.
pub fn take_contents(spec: &mut JobSpec, uploaded: &JobSpec) {
    let mut uploaded = places(uploaded).into_iter();
    visit(spec, |_, _, place| {
        if let Some(uploaded) = uploaded.next() {
            *place = uploaded;
        }
    });
}

fn places(spec: &JobSpec) -> Vec<String> {
    let mut places = Vec::new();
    visit(&mut spec.clone(), |_, _, place| places.push(place.clone()));
    places
}

/// Keeps in `folder` from which paths of `before` the contents of `after`, the same job as it was submitted, come.
///
/// # Errors
/// The file cannot be written.
pub fn keep(folder: &Path, before: &JobSpec, after: &JobSpec) -> io::Result<()> {
    let pairs = places(after).into_iter().zip(places(before));
    let uploaded = pairs.filter(|(now, path)| now.starts_with(CONTENT_URI_PREFIX) && now != path);
    let sources: BTreeMap<String, String> = uploaded.collect();
    let path = folder.join(FILE);
    if sources.is_empty() {
        // One of an earlier run says nothing of this job.
        return fs::remove_file(path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        });
    }
    let mut text = serde_json::to_vec_pretty(&sources)?;
    text.push(b'\n');
    write_atomically(&path, &text).map_err(|error| error.cause)
}

/// Puts the paths back that were kept in `folder`, the job file's own, where they still have what was uploaded. Reads
/// all of it. Returns what cannot be put back, a line each with its field.
pub fn restore(spec: &mut JobSpec, folder: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let known = read(&folder.join(FILE));
    visit(spec, |sort, field, place| {
        if !place.starts_with(CONTENT_URI_PREFIX) {
            return;
        }
        let Some(path) = known.get(place.as_str()) else {
            let problem = format!("{field}: {place} was uploaded to the coordinator of another run");
            problems.push(format!("{problem}; {}", instead(&sort, field)));
            return;
        };
        match hash(&sort, field, Path::new(path)) {
            Ok(hash) if place.split('#').next() == Some(hash.uri().as_str()) => *place = path.clone(),
            Ok(_) => problems.push(format!(
                "{field}: {path} is not what it was when {place} was uploaded; to take it as it is now, {}",
                instead(&sort, field)
            )),
            Err(problem) => problems
                .push(format!("{field}: {place} came from {path}: {problem}; {}", instead(&sort, field))),
        }
    });
    problems
}

/// What to do about a place that leads nowhere.
fn instead(sort: &Sort, field: &str) -> String {
    match sort {
        // Tables of a list have no keys on the command line.
        _ if field.contains('[') => "write a path there".to_owned(),
        Sort::Pictures(_) => format!("give --set {field}=FOLDER"),
        Sort::Drawn => format!("give --set '{field}=[\"FILE\"]'"),
        Sort::Embedding | Sort::Checkpoint => format!("give --set {field}=FILE"),
    }
}

/// What cannot be read has no paths.
fn read(path: &Path) -> BTreeMap<String, String> {
    let is_small = fs::metadata(path).is_ok_and(|about| about.len() <= LARGEST_FILE);
    let text = if is_small { fs::read(path).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&text).unwrap_or_default()
}

fn hash(sort: &Sort, field: &str, path: &Path) -> Result<ContentHash, String> {
    match sort {
        Sort::Pictures(captions) => {
            let hash = ImageFolder::scan(field, path, captions.as_deref()).and_then(|images| images.hash());
            // The text begins with the field.
            hash.map_err(|error| error.to_string().trim_start_matches(&format!("{field}: ")).to_owned())
        }
        Sort::Embedding | Sort::Drawn | Sort::Checkpoint => {
            let mut hasher = ringtune_shared::ids::ContentHasher::new();
            let read = fs::File::open(path).and_then(|file| each_piece(file, |piece| hasher.update(piece)));
            read.map(|()| hasher.finish()).map_err(|error| error.to_string())
        }
    }
}

fn each_piece(mut file: fs::File, mut act: impl FnMut(&[u8])) -> io::Result<()> {
    use io::Read as _;
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            read => act(&piece[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::parse_job_toml;

    use super::*;

    fn job(images: &str, embedding: &str) -> JobSpec {
        parse_job_toml(&format!(
            "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = {images:?}\n[train]\n\
             placeholder_token = \"<a>\"\ninitializer_embedding = {embedding:?}\n"
        ))
        .expect("valid")
    }

    #[test]
    fn what_was_uploaded_is_taken_from_where_it_came_while_it_is_the_same() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (pictures, start) = (folder.path().join("pictures"), folder.path().join("start.pt"));
        fs::create_dir(&pictures).expect("made");
        fs::write(pictures.join("a.png"), "a").expect("written");
        fs::write(&start, "rows").expect("written");
        let manifest = ImageFolder::scan("data.images", &pictures, None).and_then(|images| images.hash());
        let (manifest, rows) = (manifest.expect("read").uri(), ContentHash::of(b"rows").uri());
        let before = job(&pictures.display().to_string(), &start.display().to_string());
        let after = job(&manifest, &rows);

        // Nothing is known yet.
        let problems = restore(&mut after.clone(), folder.path());
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("--set data.images=FOLDER"), "{problems:?}");
        assert!(problems[1].contains("--set train.initializer_embedding=FILE"), "{problems:?}");

        keep(folder.path(), &before, &after).expect("kept");
        let mut again = after.clone();
        assert_eq!(restore(&mut again, folder.path()), Vec::<String>::new());
        assert_eq!(again, before);

        fs::write(pictures.join("a.png"), "b").expect("written");
        fs::remove_file(&start).expect("removed");
        let mut changed = after.clone();
        let problems = restore(&mut changed, folder.path());
        assert!(problems[0].contains("is not what it was"), "{problems:?}");
        assert!(problems[1].contains("start.pt"), "{problems:?}");
        assert_eq!(changed, after);

        // A run that uploads nothing leaves none.
        keep(folder.path(), &before, &before).expect("removed");
        assert!(!folder.path().join(FILE).exists());
    }
}
