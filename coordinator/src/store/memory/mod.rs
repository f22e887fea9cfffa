//! The store in memory: for tests of what stands on a store.

mod quota;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ringtune_shared::ids::{ContentHash, JobId, WorkerId};
use ringtune_shared::job::ContentUse;

use super::lists::{ArtifactQuery, EventQuery, JobQuery, memory as lists};
use super::{Error, Store};
use crate::core::{ArtifactRecord, Job, JobEvent, JobState, Recovered, RequestKey, StepRecord, Write};

/// Forgets everything when dropped. Can be told to fail.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    jobs: BTreeMap<JobId, Job>,
    events: BTreeMap<JobId, Vec<JobEvent>>,
    steps: BTreeMap<JobId, Vec<StepRecord>>,
    artifacts: BTreeMap<(JobId, String), ArtifactRecord>,
    /// What image manifests name; none: not known yet.
    manifests: BTreeMap<ContentHash, Option<BTreeSet<ContentHash>>>,
    /// Jobs whose events and steps are still to go.
    deleted: BTreeSet<JobId>,
    drained: BTreeSet<WorkerId>,
    /// Bytes of the contents that owners have.
    owned: BTreeMap<(ContentHash, String), u64>,
    last_number: u64,
    full: bool,
    broken: bool,
}

impl MemoryStore {
    /// From now on commits fail with [`Error::Full`], or no longer.
    pub(crate) fn set_full(&self, full: bool) {
        self.tables().full = full;
    }

    /// From now on commits fail with [`Error::Database`].
    pub(crate) fn set_broken(&self) {
        self.tables().broken = true;
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn check(&self) -> Result<(), Error> {
        match (self.full, self.broken) {
            (true, _) => Err(Error::Full),
            (_, true) => Err(Error::Database("it is broken".to_owned())),
            _ => Ok(()),
        }
    }

    fn wants(&self, content: ContentHash) -> bool {
        self.artifacts.values().any(|artifact| artifact.hash == content)
            || self.jobs.values().flat_map(|job| job.spec.contents()).any(|(used, named)| {
                named == content || (used == ContentUse::Images && self.names(named, content))
            })
    }

    fn names(&self, manifest: ContentHash, content: ContentHash) -> bool {
        self.manifests.get(&manifest).and_then(Option::as_ref).is_some_and(|files| files.contains(&content))
    }

    /// Manifests that jobs name and of which nobody knows what they name.
    fn unread(&self) -> impl Iterator<Item = ContentHash> {
        let named: BTreeSet<ContentHash> =
            self.jobs.values().flat_map(|job| job.spec.contents()).map(|(_, content)| content).collect();
        let unread =
            self.manifests.iter().filter(|(_, files)| files.is_none()).map(|(manifest, _)| *manifest);
        unread.filter(move |manifest| named.contains(manifest))
    }

    fn unwanted(&self, candidates: &[ContentHash]) -> Vec<ContentHash> {
        if self.unread().next().is_some() {
            return Vec::new();
        }
        let unwanted: BTreeSet<ContentHash> =
            candidates.iter().copied().filter(|content| !self.wants(*content)).collect();
        unwanted.into_iter().collect()
    }
}

fn limited<T>(items: impl Iterator<Item = T>, limit: u32) -> Vec<T> {
    items.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
}

/// A job as it comes back from a disk: what is not stored is at its default.
fn stored(job: &Job) -> Job {
    let mut job = job.clone();
    if let Some(ring) = job.ring.as_mut().map(Arc::make_mut) {
        ring.forget_what_is_not_stored();
    }
    job
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, writes: &[Write]) -> Result<(), Error> {
        let mut tables = self.tables();
        if !writes.is_empty() {
            tables.check()?;
        }
        let event_exists = |tables: &Tables, event: &JobEvent| {
            tables
                .events
                .get(&event.job)
                .is_some_and(|all| all.iter().any(|one| one.sequence == event.sequence))
        };
        for write in writes {
            // All or nothing: what a key refuses is found before anything is changed.
            let taken = match write {
                Write::InsertJob(job) => tables.jobs.contains_key(&job.id),
                Write::AppendEvent(event) => event_exists(&tables, event),
                _ => false,
            };
            if taken {
                return Err(Error::Database("UNIQUE constraint failed".to_owned()));
            }
        }
        for write in writes {
            match write {
                Write::InsertJob(job) => {
                    tables.last_number = tables.last_number.max(job.number);
                    for (used, manifest) in job.spec.contents() {
                        if used == ContentUse::Images {
                            tables.manifests.entry(manifest).or_default();
                        }
                    }
                    tables.jobs.insert(job.id, stored(job));
                }
                Write::UpdateJob(job) => {
                    tables.jobs.insert(job.id, stored(job));
                }
                Write::UpdateProgress { job, step, loss, last_sequence, artifacts, updated } => {
                    if let Some(job) = tables.jobs.get_mut(job) {
                        (job.step, job.loss, job.updated) = (*step, *loss, *updated);
                        (job.last_sequence, job.artifacts) = (*last_sequence, *artifacts);
                    }
                }
                Write::AppendEvent(event) => {
                    tables.events.entry(event.job).or_default().push(event.clone());
                }
                Write::SetDraining(worker, true) => drop(tables.drained.insert(*worker)),
                Write::SetDraining(worker, false) => drop(tables.drained.remove(worker)),
                Write::AppendStep(job, step) => tables.steps.entry(*job).or_default().push(*step),
                Write::DropArtifact(job, name) => {
                    tables.artifacts.remove(&(*job, name.clone()));
                }
                Write::PutArtifact(artifact) => {
                    let key = (artifact.job, artifact.name.clone());
                    tables.artifacts.insert(key, artifact.clone());
                }
            }
        }
        Ok(())
    }

    async fn probe(&self) -> Result<(), Error> {
        self.tables().check()
    }

    async fn recover(&self) -> Result<Recovered, Error> {
        let tables = self.tables();
        let jobs = tables.jobs.values().filter(|job| !job.state.is_terminal()).cloned().collect();
        let open = |job: &JobId| tables.jobs.get(job).is_some_and(|job| !job.state.is_terminal());
        let files = tables.artifacts.values().filter(|artifact| open(&artifact.job));
        let checkpoints = files.filter_map(|file| Some((file.job, file.checkpoint()?))).collect();
        let steps = tables.steps.iter().filter(|(job, _)| open(job));
        let hashes = steps
            .flat_map(|(job, steps)| steps.iter().filter_map(|step| Some((*job, step.step, step.state?))));
        let drained = tables.drained.iter().copied().collect();
        let (hashes, last_number) = (hashes.collect(), tables.last_number);
        Ok(Recovered { jobs, checkpoints, hashes, drained, last_number })
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, Error> {
        Ok(self.tables().jobs.get(&id).cloned())
    }

    async fn request(&self, request_id: &str) -> Result<Option<(JobId, RequestKey)>, Error> {
        let tables = self.tables();
        let mut keys = tables.jobs.values().filter_map(|job| Some((job.id, job.request.clone()?)));
        Ok(keys.find(|(_, key)| key.id == request_id))
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<Vec<Job>, Error> {
        Ok(lists::jobs(self.tables().jobs.values(), query))
    }

    async fn events(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<JobEvent>, Error> {
        let tables = self.tables();
        let events = tables.events.get(&job).into_iter().flatten();
        Ok(limited(events.filter(|event| event.sequence > after).cloned(), limit))
    }

    async fn steps(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<StepRecord>, Error> {
        let tables = self.tables();
        let steps = tables.steps.get(&job).into_iter().flatten();
        Ok(limited(steps.filter(|step| step.step > after).copied(), limit))
    }

    async fn list_events(&self, query: &EventQuery) -> Result<Vec<JobEvent>, Error> {
        Ok(lists::events(self.tables().events.get(&query.job).into_iter().flatten(), query))
    }

    async fn list_artifacts(&self, query: &ArtifactQuery) -> Result<Vec<ArtifactRecord>, Error> {
        Ok(lists::artifacts(self.tables().artifacts.values(), query))
    }

    async fn artifact(&self, job: JobId, name: &str) -> Result<Option<ArtifactRecord>, Error> {
        Ok(self.tables().artifacts.get(&(job, name.to_owned())).cloned())
    }

    async fn artifact_of_content(&self, hash: ContentHash) -> Result<Option<ArtifactRecord>, Error> {
        Ok(self.tables().artifacts.values().find(|artifact| artifact.hash == hash).cloned())
    }

    async fn delete_job(&self, id: JobId) -> Result<Vec<ContentHash>, Error> {
        let mut tables = self.tables();
        if tables.jobs.remove(&id).is_some() {
            tables.deleted.insert(id);
        }
        let files = tables.artifacts.values().filter(|one| one.job == id).map(|one| one.hash);
        let files: Vec<ContentHash> = files.collect();
        tables.artifacts.retain(|_, artifact| artifact.job != id);
        Ok(tables.unwanted(&files))
    }

    async fn purge(&self, rows: u32) -> Result<bool, Error> {
        fn take<T>(rows: u32, all: Option<&mut Vec<T>>) -> bool {
            let Some(all) = all else { return false };
            let most = usize::try_from(rows).unwrap_or(usize::MAX).min(all.len());
            all.drain(..most).count() > 0
        }
        let mut tables = self.tables();
        let Some(job) = tables.deleted.first().copied() else { return Ok(false) };
        let events = take(rows, tables.events.get_mut(&job));
        let steps = take(rows, tables.steps.get_mut(&job));
        if !events && !steps {
            tables.events.remove(&job);
            tables.steps.remove(&job);
            tables.deleted.remove(&job);
        }
        Ok(true)
    }

    async fn unwanted(&self, candidates: &[ContentHash]) -> Result<Vec<ContentHash>, Error> {
        Ok(self.tables().unwanted(candidates))
    }

    async fn put_manifest(&self, manifest: ContentHash, files: &[ContentHash]) -> Result<(), Error> {
        self.tables().manifests.insert(manifest, Some(files.iter().copied().collect()));
        Ok(())
    }

    async fn unread_manifests(
        &self,
        after: Option<ContentHash>,
        limit: u32,
    ) -> Result<Vec<ContentHash>, Error> {
        Ok(limited(self.tables().unread().filter(|one| after.is_none_or(|after| *one > after)), limit))
    }

    async fn forget_contents(&self, gone: &[ContentHash]) -> Result<(), Error> {
        let mut tables = self.tables();
        let named: BTreeSet<ContentHash> =
            tables.jobs.values().flat_map(|job| job.spec.contents()).map(|(_, content)| content).collect();
        tables.manifests.retain(|manifest, _| !gone.contains(manifest) || named.contains(manifest));
        Ok(())
    }

    async fn count_jobs(&self) -> Result<BTreeMap<JobState, u64>, Error> {
        let mut counts = BTreeMap::new();
        for job in self.tables().jobs.values() {
            *counts.entry(job.state).or_default() += 1;
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{conformance, lists, quota};

    #[tokio::test]
    async fn conforms() {
        let store = MemoryStore::default();
        let written = conformance::run(&store).await;
        conformance::check_written(&store, &written).await;
        lists::conformance::run(&MemoryStore::default()).await;
        quota::conformance::run(&MemoryStore::default()).await;
    }
}
