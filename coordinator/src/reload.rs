//! What changes in a coordinator that runs, when its settings are read again.

use ringtune_shared::daemon::logging::Logs;

use crate::{
    access::Access,
    core::{Limits, OwnerLimits},
    quotas::Quotas,
    service::LoopLimits,
    settings::{LimitSettings, Settings},
};

/// The parts whose settings change. None of them keeps the coordinator from its end.
#[derive(Clone)]
pub struct Changing {
    pub(crate) access: Access,
    pub(crate) quotas: Quotas,
    pub(crate) jobs: LoopLimits,
}

impl Changing {
    /// Uses all settings of [`crate::settings::CHANGE_BY_RELOAD`].
    ///
    /// # Errors
    /// One that cannot be used; then nothing was changed.
    pub async fn apply(&self, settings: &Settings, logs: &Logs) -> Result<(), String> {
        logs.set_filter(&settings.log.filter).map_err(|error| error.to_string())?;
        let limits = &settings.limits;
        self.access.set_calls_per_second(limits.calls_per_second);
        self.quotas.set_limits(owner_limits(limits));
        self.jobs.set(loop_limits(limits)).await;
        Ok(())
    }
}

pub(crate) fn loop_limits(limits: &LimitSettings) -> Limits {
    let LimitSettings { queued_jobs, owner_queued_jobs, owner_ranks, workers, .. } = *limits;
    Limits { queued_jobs, owner_queued_jobs, owner_ranks, workers }
}

pub(crate) fn owner_limits(limits: &LimitSettings) -> OwnerLimits {
    OwnerLimits { bytes: limits.owner_bytes, files: limits.owner_files }
}
