//! The pictures of `data.source`: a folder of them, tar shards or .parquet files, that every worker reads by itself, or fetches
//! whole first.
//!
//! Where each picture lies and what its bytes are is found once, in one pass over all of them; after that a picture is read when
//! it is encoded. Pictures are numbered by the names of their files, and within these by their own names (in a tar shard) or
//! rows: so they have the same numbers on all workers. That all have the same pictures with the same captions the ranks find out
//! by one hash, which for a single tar shard is that of a folder of the same files.

mod choice;
mod read;

use std::sync::{Arc, Mutex, PoisonError};

use ringtune_shared::job::{ModelLocation, PathUse};
use ringtune_sources::{LocalModel, ModelSources, progress_channel};
use tokio_util::sync::CancellationToken;

use self::{
    choice::{Choice, Form, choose, listed},
    read::{Content, read_shard, read_table},
};
use super::{super::Error, Pictures, list_at};
use crate::{
    access::{Access, ConfinedPath},
    base_model::{News, telling},
    data,
    journal::Journal,
    session::{Progress, ProgressStage, RankEvent},
    while_wanted,
};

/// Folders within each other that are looked into.
const DEEPEST: usize = 4;
/// Files of a source on this machine.
const MOST_FILES: usize = 100_000;

/// A source that a job names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    /// The job's field.
    pub(super) field: &'a str,
    /// What stands there.
    pub(super) place: &'a str,
    /// The column of captions, where these are used.
    pub(super) captions: Option<&'a str>,
}

/// What is read, on this machine.
struct Found {
    choice: Choice,
    /// The folder that the files are in, or the only one of them.
    root: ConfinedPath,
    /// What was fetched.
    held: Option<LocalModel>,
}

impl Source<'_> {
    /// Brings its pictures here.
    ///
    /// # Errors
    /// It is out of reach or cannot be fetched, has no pictures, or some that cannot be used.
    pub(super) async fn bring(
        self,
        access: &Access,
        sources: &ModelSources,
        journal: &Journal,
    ) -> Result<Pictures, Error> {
        let location = ModelLocation::parse_pictures(self.place).map_err(Error::Source)?;
        access.fetch_named(self.field, &location)?;
        let Found { choice, root, held } = match &location {
            ModelLocation::Local(_) => self.find(access.clone()).await?,
            remote => self.fetch(remote, access, sources, journal).await?,
        };
        if !choice.held_back.is_empty() {
            let names: Vec<&str> = choice.held_back.iter().map(String::as_str).collect();
            let text =
                format!("{}: left out, as it is held back from training: {}", self.field, listed(&names));
            journal.warn(text).await;
        }
        let mut pictures = match choice.form {
            Form::Folder => list_at(self.field, root, self.captions, journal).await?,
            Form::Shards | Form::Tables => self.read(&choice, &root, journal).await?,
        };
        pictures.held.extend(held.map(Arc::new));
        Ok(pictures)
    }

    /// Looks what lies in a folder of this machine, or takes the file that it is.
    async fn find(self, access: Access) -> Result<Found, Error> {
        let (field, place) = (self.field.to_owned(), self.place.to_owned());
        let look = move || {
            let root = access.place(PathUse::Pictures, &field, &place)?;
            let unsuitable = |problem| Error::Source(format!("{} {problem}", root.shown().display()));
            let names = match root.is_file() {
                true => vec![file_name(&root)],
                false => names_below(&root)?,
            };
            let choice = choose(&names, false).map_err(unsuitable)?;
            if root.is_file() && choice.form == Form::Folder {
                return Err(unsuitable("is a single picture; allowed: the folder that it is in".to_owned()));
            }
            Ok(Found { choice, root, held: None })
        };
        ringtune_shared::tasks::spawn_blocking(look).await?
    }

    /// Fetches what is needed of a hub's set of data, or of a bucket.
    async fn fetch(
        self,
        location: &ModelLocation,
        access: &Access,
        sources: &ModelSources,
        journal: &Journal,
    ) -> Result<Found, Error> {
        let choice = Mutex::new(None);
        let is_published = matches!(location, ModelLocation::Hub(_));
        let needed = |names: &[String]| {
            let chosen = choose(names, is_published)?;
            let files = chosen.files.clone();
            *choice.lock().unwrap_or_else(PoisonError::into_inner) = Some(chosen);
            Ok(files)
        };
        let (sender, receiver) = progress_channel();
        let remarks = sender.remarks();
        let fetching = async {
            match location {
                ModelLocation::Hub(set) => sources.fetch_dataset(set, &needed, &sender).await,
                ModelLocation::S3(bucket) => sources.fetch_files(bucket, &needed, &sender).await,
                ModelLocation::Local(path) => Ok(LocalModel::here(path.clone())),
            }
        };
        let tell = |news| async move {
            match news {
                News::Progress(now) => {
                    let progress =
                        Progress { stage: ProgressStage::Download, done: now.done, total: now.total };
                    journal.event(RankEvent::Progress(progress)).await;
                }
                News::Remark(text) => journal.warn(format!("{}: {text}", self.field)).await,
            }
        };
        let fetched = telling(fetching, &receiver, remarks, tell).await;
        let (local, _) = fetched.map_err(|error| Error::Fetch(Box::new(error)))?;
        for remark in &local.remarks {
            journal.warn(format!("{}: {remark}", self.field)).await;
        }
        let commit =
            local.origin.as_ref().map_or(String::new(), |origin| format!(", commit {}", origin.commit));
        journal.info(format!("data: {location}{commit}")).await;
        let cache = local.cache.clone().unwrap_or_else(|| local.folder.clone());
        let (access, folder) = (access.clone(), local.folder.clone());
        let open = move || access.fetched(&folder, &cache);
        let root = ringtune_shared::tasks::spawn_blocking(open)
            .await?
            .map_err(|error| data::Error::ImageFolder { folder: error.path, source: error.source })?;
        let choice = choice.into_inner().unwrap_or_else(PoisonError::into_inner);
        let choice = choice.ok_or_else(|| Error::Source("was fetched without a look at it".to_owned()))?;
        Ok(Found { choice, root, held: Some(local) })
    }

    /// Goes through all files, one after the other.
    async fn read(
        self,
        Choice { form, files, .. }: &Choice,
        root: &ConfinedPath,
        journal: &Journal,
    ) -> Result<Pictures, Error> {
        let (total, mut content) = (files.len() as u64, Content::default());
        let unsuitable = |problem| Error::Source(format!("{} {problem}", self.place));
        for (done, name) in (0..).zip(files) {
            let progress = Progress { stage: ProgressStage::Fetch, done, total };
            journal.event(RankEvent::Progress(progress)).await;
            let (root, name, form) = (root.clone(), name.clone(), *form);
            let captions = self.captions.map(str::to_owned);
            let read = move |still: &CancellationToken| {
                let file = Arc::new(if root.is_file() { root } else { root.join(&name) });
                let shown = (total > 1).then_some(name.as_str());
                match form {
                    Form::Shards => read_shard(&file, shown, captions.as_deref(), still),
                    Form::Tables | Form::Folder => read_table(&file, &name, captions.as_deref(), still),
                }
            };
            content.add(while_wanted::spawn_blocking(read).await??).map_err(unsuitable)?;
        }
        journal
            .event(RankEvent::Progress(Progress { stage: ProgressStage::Fetch, done: total, total }))
            .await;
        let (count, names) = &content.skipped;
        if *count > 0 {
            let text = format!("{}: {count} members skipped, no pictures: {}", self.field, names.join(", "));
            journal.warn(text).await;
        }
        content.into_pictures().map_err(unsuitable)
    }
}

fn file_name(file: &ConfinedPath) -> String {
    file.shown().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The names of all files in a folder and in those within it, with slashes. Blocks.
fn names_below(root: &ConfinedPath) -> Result<Vec<String>, Error> {
    let failed = |folder: &ConfinedPath| {
        let folder = folder.shown().to_owned();
        |source| data::Error::ImageFolder { folder, source }
    };
    let (mut names, mut open) = (Vec::new(), vec![(root.clone(), String::new(), 0)]);
    while let Some((folder, prefix, depth)) = open.pop() {
        for entry in folder.names().map_err(failed(&folder))? {
            // Another name is none of a file that is read.
            let Some(name) = entry.to_str() else { continue };
            let (path, full) = (folder.join(name), format!("{prefix}{name}"));
            match path.is_dir() {
                true if depth < DEEPEST => open.push((path, format!("{full}/"), depth + 1)),
                true => {}
                false => names.push(full),
            }
            if names.len() + open.len() > MOST_FILES {
                let shown = root.shown().display();
                return Err(Error::Source(format!("{shown} has more than {MOST_FILES} files in it")));
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
