//! Pictures of a class: those that a job lacks are drawn by its cluster before it is submitted, and kept in its folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ringtune_proto::convert::{queue_to_wire, spec_to_wire};
use ringtune_shared::{job::JobSpec, manifest::is_image_name};
use uuid::Uuid;

use super::{
    follow::{Follow, OnInterrupt, Steps, job_id},
    plural,
};
use crate::{
    client::Client,
    cluster::LocalCluster,
    error::Error,
    images::ImageFolder,
    interrupt::Interrupts,
    job_file::JobFile,
    output::{Output, remark},
};

/// What pictures that a job draws are called before their number.
const DRAWN: &str = "image-";

/// A folder of a class that lacks pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lacking {
    /// The job's field.
    pub(super) field: String,
    pub(super) folder: PathBuf,
    /// Pictures that are there.
    there: u32,
    /// Pictures that there have to be.
    wanted: u32,
}

impl Lacking {
    /// None: the folder has enough. One that is not there has none.
    pub(super) fn of(field: &str, folder: &Path, wanted: u32) -> Option<Self> {
        let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let there = names.filter(|name| name.to_str().is_some_and(is_image_name)).count();
        let there = u32::try_from(there).unwrap_or(u32::MAX);
        (there < wanted).then(|| Self { field: field.to_owned(), folder: folder.to_owned(), there, wanted })
    }

    /// The job that draws what is missing, and the beginning of its pictures' names.
    ///
    /// What is drawn first has the job's seed, and what is drawn later another one: else the same pictures would come again.
    fn drawing(&self, spec: &JobSpec) -> Result<(JobSpec, String), Error> {
        let name = |seed: u64| format!("class-{seed}-");
        let names: Vec<String> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        let is_free = |seed: &u64| !names.iter().any(|known| known.starts_with(&name(*seed)));
        let seed = (spec.class_seed()..).find(is_free).unwrap_or_default();
        let refused = |problem: String| {
            Error::Usage(format!("{}: its pictures cannot be drawn: {problem}", self.field))
        };
        let drawing = spec.drawing_of_class(self.wanted - self.there, seed);
        let drawing = drawing.ok_or_else(|| refused("the job has no class".to_owned()))?;
        Ok((drawing.map_err(|error| refused(error.to_string()))?, name(seed)))
    }
}

/// Has the pictures drawn that a job's class lacks, by a job of its own, and puts them into its folder. Gives all of that.
///
/// # Errors
/// They cannot be drawn, or the folder cannot be written.
pub(super) async fn draw(
    lacking: Lacking,
    file: &JobFile,
    client: &Client,
    cluster: Option<&mut LocalCluster>,
    output: Output,
    interrupts: &Interrupts,
) -> Result<ImageFolder, Error> {
    let (drawing, beginning) = lacking.drawing(&file.spec)?;
    // 1. The job.
    let Lacking { field, folder, there, wanted } = lacking;
    let count = wanted - there;
    remark(&format!(
        "{field}: {} has {there} of {wanted} pictures; drawing {count} {}",
        folder.display(),
        plural(count, "other")
    ));
    let queue = queue_to_wire(&file.queue);
    let job = client.create_job(spec_to_wire(&drawing), queue, &Uuid::new_v4().to_string()).await?;
    let job = job_id(&job)?;
    let follow = Follow {
        client,
        job_id: job,
        steps: Steps { total: 0, done_before: 0 },
        output,
        on_interrupt: OnInterrupt::Cancel,
        cluster,
        keeper: None,
    };
    follow.until_the_end(interrupts).await?.into_result(job)?;
    // 2. Its pictures, each under its name once it is whole.
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    };
    fs::create_dir_all(&folder).map_err(failed("cannot make the folder", &folder))?;
    let fetched = tempfile::tempdir_in(&folder).map_err(failed("cannot write in", &folder))?;
    for artifact in client.list_artifacts(job).await? {
        let Some(number) = artifact.name.strip_prefix(DRAWN) else { continue };
        let saved = client.download(&artifact, fetched.path()).await?;
        let path = folder.join(format!("{beginning}{number}"));
        fs::rename(&saved.path, &path).map_err(failed("cannot write", &path))?;
    }
    // 3. All of them, for the job.
    let images = ImageFolder::scan(&field, &folder, None)?;
    remark(&format!("{field}: kept {count} {} in {}", plural(count, "picture"), folder.display()));
    Ok(images)
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::parse_job_toml;

    use super::*;

    #[test]
    fn what_is_missing_is_drawn_with_a_seed_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let class = folder.path().join("class");
        let spec = parse_job_toml(&format!(
            "kind = \"lora\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\nclass_images = {class:?}\n\
             class_prompt = \"a star\"\n[train]\nresolution = 64\nseed = 5\nnum_class_images = 3\n"
        ))
        .expect("a job");
        let lacking = || Lacking::of("data.class_images", &class, 3);
        let drawing = || lacking().expect("too few").drawing(&spec).expect("a job");
        let (first, name) = drawing();
        assert_eq!(name, "class-5-");
        let text = first.to_toml().expect("a text");
        for line in ["prompts = [\"a star\"]", "count = 3", "seed = 5", "width = 64"] {
            assert!(text.contains(line), "{text}");
        }
        fs::create_dir(&class).expect("a folder");
        for name in ["class-5-0001.png", "mine.jpg", "notes.txt"] {
            fs::write(class.join(name), name).expect("written");
        }
        let (second, name) = drawing();
        assert_eq!(name, "class-6-");
        assert!(second.to_toml().expect("a text").contains("count = 1"));
        fs::write(class.join("class-6-0001.png"), "x").expect("written");
        assert_eq!(lacking(), None);
    }
}
