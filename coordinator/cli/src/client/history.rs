//! What is stored of a job and of the cluster, read at once.

use ringtune_proto::v1::{self, cluster_service_client::ClusterServiceClient};
use uuid::Uuid;

use super::{Client, ClientError, unary};

/// Events asked for in one page.
const EVENTS: i32 = 1000;

impl Client {
    /// The coordinator's version, and how much is going on.
    pub async fn get_cluster(&self) -> Result<v1::GetClusterResponse, ClientError> {
        self.call("look at the cluster", || {
            let mut cluster = ClusterServiceClient::new(self.link.clone());
            async move { cluster.get_cluster(unary(v1::GetClusterRequest {})).await }
        })
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
                    .call("list the events", || {
                        let (mut jobs, request) = (self.jobs(), unary(request.clone()));
                        async move { jobs.list_events(request).await }
                    })
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
            .call("list the steps", || {
                let (mut jobs, request) = (self.jobs(), unary(request.clone()));
                async move { jobs.list_steps(request).await }
            })
            .await?;
        Ok(answer.steps)
    }
}
