//! Lists, whose pages are this module's own affair.

use ringtune_proto::v1;
use uuid::Uuid;

use super::{Client, ClientError, PAGE_SIZE};

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
                .ask("list the jobs", request, async |request| self.jobs().list_jobs(request).await)
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
        self.pages(async |page_token| {
            let request = v1::ListWorkersRequest { page_size: PAGE_SIZE, page_token, ..Default::default() };
            let page = self
                .ask("list the workers", request, async |request| self.cluster().list_workers(request).await)
                .await?;
            Ok((page.workers, page.next_page_token))
        })
        .await
    }

    /// All artifacts of a job.
    pub async fn list_artifacts(&self, job: Uuid) -> Result<Vec<v1::Artifact>, ClientError> {
        self.pages(async |page_token| {
            let request = v1::ListArtifactsRequest {
                job_id: job.to_string(),
                page_size: PAGE_SIZE,
                page_token,
                ..Default::default()
            };
            let page = self
                .ask("list the artifacts", request, async |request| {
                    self.artifacts().list_artifacts(request).await
                })
                .await?;
            Ok((page.artifacts, page.next_page_token))
        })
        .await
    }

    /// All of a list, page after page: `page` gives the one of a token, and the token of the next, which is empty after the last.
    pub(super) async fn pages<T>(
        &self,
        page: impl AsyncFn(String) -> Result<(Vec<T>, String), ClientError>,
    ) -> Result<Vec<T>, ClientError> {
        let (mut all, mut page_token) = (Vec::new(), String::new());
        loop {
            let (part, next) = page(page_token).await?;
            all.extend(part);
            if next.is_empty() {
                return Ok(all);
            }
            page_token = next;
        }
    }
}
