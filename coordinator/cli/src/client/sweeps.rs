//! Sweeps.

use ringtune_proto::v1;
use uuid::Uuid;

use super::{Client, ClientError};

impl Client {
    /// Creates all jobs of a sweep or none; safe to repeat with the same `request_id`.
    pub async fn create_sweep(&self, wanted: v1::CreateSweepRequest) -> Result<v1::Sweep, ClientError> {
        let doing = "submit the sweep";
        let answer = self
            .call(doing, || {
                let (mut jobs, request) = (self.jobs(), self.traced(wanted.clone()));
                async move { jobs.create_sweep(request).await }
            })
            .await?;
        self.present(doing, answer.sweep)
    }

    /// Reads a sweep.
    pub async fn get_sweep(&self, sweep: Uuid) -> Result<v1::Sweep, ClientError> {
        let (doing, request) = ("read the sweep", v1::GetSweepRequest { sweep_id: sweep.to_string() });
        let answer = self.ask(doing, request, async |request| self.jobs().get_sweep(request).await).await?;
        self.present(doing, answer.sweep)
    }

    /// Asks all jobs of a sweep to stop that have not ended.
    pub async fn cancel_sweep(&self, sweep: Uuid, reason: &str) -> Result<v1::Sweep, ClientError> {
        let doing = "cancel the sweep";
        let request = v1::CancelSweepRequest { sweep_id: sweep.to_string(), reason: reason.to_owned() };
        let answer =
            self.ask(doing, request, async |request| self.jobs().cancel_sweep(request).await).await?;
        self.present(doing, answer.sweep)
    }
}
