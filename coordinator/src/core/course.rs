//! How far a job goes, on how many ranks, and how that is said: an ordinary job takes it from its spec, a verification from
//! what it verifies.

use super::job::Job;
use super::time::Time;
use super::verification::Verification;

impl Job {
    /// Its last step; 0: it has none.
    pub fn total_steps(&self) -> u64 {
        self.verification
            .as_ref()
            .map_or_else(|| self.spec.total_steps(), |verification| verification.last_step)
    }

    /// When it has to be done, if it has to be by any time.
    pub(super) fn ends_by(&self) -> Option<Time> {
        self.queue.ends_by(self.started.map(|started| started.0)).map(Time)
    }

    /// Ranks wanted, and the fewest that it starts on.
    pub fn ranks(&self) -> (u32, u32) {
        let size = &self.spec.common.cluster;
        if self.verification.is_some() { (1, 1) } else { (size.world_size, size.min_world_size) }
    }

    /// What its ranks do, as in "training on 3 rank(s)".
    pub(super) fn activity(&self) -> String {
        match &self.verification {
            Some(Verification { job, .. }) => format!("computing steps of {job} again"),
            None => self.spec.activity().to_string(),
        }
    }

    /// What is said of it once it succeeded.
    pub(super) fn success(&self) -> String {
        match &self.verification {
            Some(Verification { job, first_step, last_step, .. }) => {
                format!("same: steps {first_step} to {last_step} of {job}")
            }
            None => self.spec.success(self.step),
        }
    }

    /// The newest step of those to be verified that was found the same; 0: none yet. Only such steps are kept.
    pub fn compared(&self) -> u64 {
        let first = self.verification.as_ref().map_or(u64::MAX, |verification| verification.first_step);
        if self.step >= first { self.step } else { 0 }
    }

    /// Whether it is a verification of steps that were not all compared.
    pub(super) fn lacks_proof(&self) -> bool {
        self.verification.as_ref().is_some_and(|verification| self.step < verification.last_step)
    }
}
