//! What is stored of a job and of the cluster, read at once.

use ringtune_proto::v1;
use uuid::Uuid;

use super::{Client, ClientError};

/// Events asked for in one page.
const EVENTS: i32 = 1000;

impl Client {
    /// The coordinator's version, and how much is going on.
    pub async fn get_cluster(&self) -> Result<v1::GetClusterResponse, ClientError> {
        let request = v1::GetClusterRequest {};
        self.ask("look at the cluster", request, async |request| self.cluster().get_cluster(request).await)
            .await
    }

    /// What an owner has of what is limited, and may have. `owner`: empty for the caller.
    pub async fn get_limits(&self, owner: &str) -> Result<v1::GetLimitsResponse, ClientError> {
        let request = v1::GetLimitsRequest { owner: owner.to_owned() };
        self.ask("ask for the limits", request, async |request| self.cluster().get_limits(request).await)
            .await
    }

    /// The first events of a job but for its steps, at most `limit`.
    pub async fn list_events(&self, job: Uuid, limit: usize) -> Result<Vec<v1::JobEvent>, ClientError> {
        let mut events = Vec::new();
        for kind in ["state_change", "artifact", "log"] {
            let mut page_token = String::new();
            loop {
                let request = v1::ListEventsRequest {
                    job_id: job.to_string(),
                    page_size: EVENTS,
                    page_token,
                    filter: format!("type={kind}"),
                    ..Default::default()
                };
                let page = self
                    .ask("list the events", request, async |request| self.jobs().list_events(request).await)
                    .await?;
                events.extend(page.events);
                page_token = page.next_page_token;
                if page_token.is_empty() || events.len() >= limit {
                    break;
                }
            }
        }
        events.sort_by_key(|event| event.sequence);
        events.truncate(limit);
        Ok(events)
    }

    /// A job's steps, thinned to at most so many.
    pub async fn thinned_steps(&self, job: Uuid, points: i32) -> Result<Vec<v1::StepReport>, ClientError> {
        let request =
            v1::ListStepsRequest { job_id: job.to_string(), max_points: points, ..Default::default() };
        let answer = self
            .ask("list the steps", request, async |request| self.jobs().list_steps(request).await)
            .await?;
        Ok(answer.steps)
    }
}
