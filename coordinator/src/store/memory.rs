//! The store in memory: for tests of what stands on a store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ringtune_shared::ids::{CONTENT_URI_PREFIX, ContentHash, JobId};
use serde_json::Value;

use super::lists::{ArtifactQuery, EventQuery, JobQuery, memory as lists};
use super::{Error, Store};
use crate::core::{
    ArtifactRecord, Job, JobEvent, JobState, Phase, Recovered, RequestKey, StepRecord, Time, Write,
};

/// Forgets everything when dropped. Can be told to fail.
#[derive(Debug, Default)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    jobs: BTreeMap<JobId, Job>,
    events: BTreeMap<JobId, Vec<JobEvent>>,
    steps: BTreeMap<JobId, Vec<StepRecord>>,
    artifacts: BTreeMap<(JobId, String), ArtifactRecord>,
    last_number: u64,
    full: bool,
}

impl MemoryStore {
    /// From now on commits fail with [`Error::Full`], or no longer.
    pub fn set_full(&self, full: bool) {
        self.tables().full = full;
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn limited<T>(items: impl Iterator<Item = T>, limit: u32) -> Vec<T> {
    items.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
}

/// A job as it comes back from a disk: what is not stored is at its default.
fn stored(job: &Job) -> Job {
    let mut job = job.clone();
    if let Some(ring) = job.ring.as_mut().map(Arc::make_mut) {
        ring.patience = Time::default();
        ring.broken = None;
        for member in &mut ring.members {
            member.phase = Phase::default();
            member.last_step = 0;
        }
    }
    job
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, writes: &[Write]) -> Result<(), Error> {
        let mut tables = self.tables();
        if tables.full && !writes.is_empty() {
            return Err(Error::Full);
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
                    tables.jobs.insert(job.id, stored(job));
                }
                Write::UpdateJob(job) => {
                    tables.jobs.insert(job.id, stored(job));
                }
                Write::UpdateProgress { job, step, loss, last_sequence, artifacts } => {
                    if let Some(job) = tables.jobs.get_mut(job) {
                        (job.step, job.loss) = (*step, *loss);
                        (job.last_sequence, job.artifacts) = (*last_sequence, *artifacts);
                    }
                }
                Write::AppendEvent(event) => {
                    tables.events.entry(event.job).or_default().push(event.clone());
                }
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
        if self.tables().full { Err(Error::Full) } else { Ok(()) }
    }

    async fn recover(&self) -> Result<Recovered, Error> {
        let tables = self.tables();
        let jobs = tables.jobs.values().filter(|job| !job.state.is_terminal()).cloned().collect();
        Ok(Recovered { jobs, last_number: tables.last_number })
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
        tables.jobs.remove(&id);
        tables.events.remove(&id);
        tables.steps.remove(&id);
        let mut mine: Vec<ContentHash> =
            tables.artifacts.values().filter(|one| one.job == id).map(|one| one.hash).collect();
        tables.artifacts.retain(|_, artifact| artifact.job != id);
        mine.sort_unstable();
        mine.dedup();
        mine.retain(|hash| !tables.artifacts.values().any(|other| other.hash == *hash));
        Ok(mine)
    }

    async fn purge(&self, _rows: u32) -> Result<bool, Error> {
        Ok(false)
    }

    async fn content_uris(&self) -> Result<Vec<String>, Error> {
        let mut uris = Vec::new();
        for job in self.tables().jobs.values() {
            let spec = serde_json::to_value(&*job.spec).map_err(|error| Error::Damaged {
                what: "jobs.spec".to_owned(),
                problem: error.to_string(),
            })?;
            add_content_uris(&spec, &mut uris);
        }
        uris.sort_unstable();
        uris.dedup();
        Ok(uris)
    }

    async fn count_jobs(&self) -> Result<BTreeMap<JobState, u64>, Error> {
        let mut counts = BTreeMap::new();
        for job in self.tables().jobs.values() {
            *counts.entry(job.state).or_default() += 1;
        }
        Ok(counts)
    }
}

/// All texts anywhere in `value` that are content URIs.
fn add_content_uris(value: &Value, uris: &mut Vec<String>) {
    match value {
        Value::String(text) if text.starts_with(CONTENT_URI_PREFIX) => uris.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| add_content_uris(value, uris)),
        Value::Object(values) => values.values().for_each(|value| add_content_uris(value, uris)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{conformance, lists};

    #[tokio::test]
    async fn conforms() {
        let store = MemoryStore::default();
        let written = conformance::run(&store).await;
        conformance::check_written(&store, &written).await;
        lists::conformance::run(&MemoryStore::default()).await;
    }
}
