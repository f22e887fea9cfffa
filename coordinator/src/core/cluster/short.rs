//! Rings that run and have room for more members, by the class of their jobs.

use ringtune_shared::ids::JobId;

use crate::core::SharedMap;
use crate::core::job::Job;

/// See the module. Those that cannot go on without more come first, then the oldest.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::core) struct ShortRings(SharedMap<String, SharedMap<(Want, u64), JobId>>);

/// How much a ring wants another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum Want {
    /// It cannot go on.
    Spare,
    /// It would be faster.
    Growth,
}

impl ShortRings {
    /// Whether the job's ring has room.
    pub(super) fn enter(&mut self, job: &Job) -> bool {
        let (Some(want), Some(pin)) = (want(job), &job.pin) else { return false };
        let mut jobs = self.0.get(&pin.numerics_class).cloned().unwrap_or_default();
        jobs.insert_mut((want, job.number), job.id);
        self.0.insert_mut(pin.numerics_class.clone(), jobs);
        true
    }

    pub(super) fn leave(&mut self, job: &Job) {
        let (Some(want), Some(pin)) = (want(job), &job.pin) else { return };
        let Some(jobs) = self.0.get_mut(&pin.numerics_class) else { return };
        jobs.remove_mut(&(want, job.number));
        if jobs.is_empty() {
            self.0.remove_mut(&pin.numerics_class);
        }
    }

    /// The jobs of a class whose rings want another member as much as `wanted`.
    pub(in crate::core) fn of_class(&self, class: &str, wanted: Want) -> impl Iterator<Item = JobId> {
        let jobs = self.0.get(class).into_iter().flat_map(SharedMap::iter);
        jobs.filter(move |((want, _), _)| *want == wanted).map(|(_, job)| *job)
    }
}

/// How much a job's ring wants another member now. None: it is full, or waits for members already.
fn want(job: &Job) -> Option<Want> {
    let ring = job.ring.as_ref().filter(|ring| ring.reforms())?;
    let (world_size, min_world_size) = job.ranks();
    let (members, all) = (ring.present().count(), ring.present().count() + ring.joining.len());
    if all >= world_size as usize {
        return None;
    }
    let starves = ring.reforming.as_ref().is_some_and(|reforming| reforming.spare_by.is_some());
    if starves && all < min_world_size as usize {
        return Some(Want::Spare);
    }
    // One that waits for workers is not asked to wait for more of them.
    (members > 0 && !starves).then_some(Want::Growth)
}
