//! Lists, whose pages are this module's own affair.

use ringtune_proto::v1::{self, cluster_service_client::ClusterServiceClient};
use uuid::Uuid;

use super::{Client, ClientError, PAGE_SIZE, unary};

/// A term of a filter: this field has this value, whatever is in it.
pub fn named(field: &str, value: &str) -> String {
    format!("{field}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Client {
    /// The first jobs that `wanted` asks for, at most `limit`.
    pub async fn list_jobs(
        &self,
        wanted: v1::ListJobsRequest,
        limit: usize,
    ) -> Result<Vec<v1::Job>, ClientError> {
        let page_size = i32::try_from(limit).unwrap_or(PAGE_SIZE).min(PAGE_SIZE);
        self.find_jobs(v1::ListJobsRequest { page_size, ..wanted }, limit, |_| true).await
    }

    /// The first jobs of all pages of `wanted` for which `is_meant` is true, at most `limit`.
    pub async fn find_jobs(
        &self,
        wanted: v1::ListJobsRequest,
        limit: usize,
        is_meant: impl Fn(&v1::Job) -> bool,
    ) -> Result<Vec<v1::Job>, ClientError> {
        let page_size = if wanted.page_size > 0 { wanted.page_size } else { PAGE_SIZE };
        let mut found = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListJobsRequest { page_size, page_token, ..wanted.clone() };
            let page = self
                .call("list the jobs", || {
                    let (mut jobs, request) = (self.jobs(), unary(request.clone()));
                    async move { jobs.list_jobs(request).await }
                })
                .await?;
            found.extend(page.jobs.into_iter().filter(&is_meant));
            if page.next_page_token.is_empty() || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
            page_token = page.next_page_token;
        }
    }

    /// All workers that the coordinator knows.
    pub async fn list_workers(&self) -> Result<Vec<v1::Worker>, ClientError> {
        let mut workers = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListWorkersRequest { page_size: PAGE_SIZE, page_token, ..Default::default() };
            let page = self
                .call("list the workers", || {
                    let request = unary(request.clone());
                    let mut cluster = ClusterServiceClient::new(self.link.clone());
                    async move { cluster.list_workers(request).await }
                })
                .await?;
            workers.extend(page.workers);
            if page.next_page_token.is_empty() {
                return Ok(workers);
            }
            page_token = page.next_page_token;
        }
    }

    /// All artifacts of a job.
    pub async fn list_artifacts(&self, job: Uuid) -> Result<Vec<v1::Artifact>, ClientError> {
        let mut artifacts = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListArtifactsRequest {
                job_id: job.to_string(),
                page_size: PAGE_SIZE,
                page_token,
                ..Default::default()
            };
            let page = self
                .call("list the artifacts", || {
                    let (mut client, request) = (self.artifacts(), unary(request.clone()));
                    async move { client.list_artifacts(request).await }
                })
                .await?;
            artifacts.extend(page.artifacts);
            if page.next_page_token.is_empty() {
                return Ok(artifacts);
            }
            page_token = page.next_page_token;
        }
    }
}
