//! Rings by the numerics class of their jobs, and by how urgent these are.

use std::cmp::Reverse;

use ringtune_shared::ids::JobId;

use crate::core::job::Job;
use crate::core::{SharedMap, SharedSet};

/// Those of lower priority come first; of equal ones the younger jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::core) struct Rings(SharedMap<String, SharedSet<(u32, Reverse<u64>, JobId)>>);

impl Rings {
    pub(super) fn enter(&mut self, job: &Job) {
        let (Some(_), Some(pin)) = (&job.ring, &job.pin) else { return };
        let mut rings = self.0.get(&pin.numerics_class).cloned().unwrap_or_default();
        rings.insert_mut((job.queue.priority, Reverse(job.number), job.id));
        self.0.insert_mut(pin.numerics_class.clone(), rings);
    }

    pub(super) fn leave(&mut self, job: &Job) {
        let (Some(_), Some(pin)) = (&job.ring, &job.pin) else { return };
        let Some(rings) = self.0.get_mut(&pin.numerics_class) else { return };
        rings.remove_mut(&(job.queue.priority, Reverse(job.number), job.id));
        if rings.is_empty() {
            self.0.remove_mut(&pin.numerics_class);
        }
    }

    /// The jobs of a class that have a ring and a priority of at most `most`.
    pub(in crate::core) fn of_class(&self, class: &str, most: u32) -> impl Iterator<Item = JobId> {
        let rings = self.0.get(class).into_iter().flat_map(|rings| rings.iter());
        rings.take_while(move |(priority, ..)| *priority <= most).map(|(.., job)| *job)
    }

    /// Whether a job of a class has a ring and a priority of at most `most`.
    pub(in crate::core) fn has(&self, class: &str, most: u32) -> bool {
        self.of_class(class, most).next().is_some()
    }
}
