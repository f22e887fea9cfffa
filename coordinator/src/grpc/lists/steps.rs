//! ListSteps.

use ringtune_proto::convert::{FieldError, unsigned};
use ringtune_proto::v1;
use ringtune_shared::ids::JobId;

use super::pages::{self, Listing};
use super::thin::{Range, Thinner};
use crate::access::Call;
use crate::grpc::ids::job_id;
use crate::grpc::jobs::Jobs;
use crate::grpc::outbound;
use crate::grpc::status::FailedRequest;

/// Steps on a page, by default and at most.
const PAGE: (u32, u32) = (1000, 10_000);
/// The fewest and the most points of a chart.
const POINTS: (u32, u32) = (4, 10_000);
/// Steps that are read at once where they are thinned.
const READ: u32 = 2000;

impl Jobs {
    pub(in crate::grpc) async fn page_of_steps(
        &self,
        call: &Call,
        request: v1::ListStepsRequest,
    ) -> Result<v1::ListStepsResponse, FailedRequest> {
        let first: u64 = unsigned("after_step", request.after_step)?;
        let size = pages::size(request.page_size, PAGE.0, PAGE.1)?;
        let job = job_id(&request.job_id)?;
        self.0.check_reach(call, job).await?;
        if request.max_points != 0 {
            let points = points(&request)?;
            return self.thinned_steps(job, first, points).await;
        }
        let listing = Listing::new("steps", &format!("{job} {first}"));
        let after = listing.last_number(&request.page_token)?.unwrap_or(first);
        self.0.handle.job(job).await?;
        let found = self.0.handle.store().steps(job, after, size + 1).await?;
        let (steps, last) = pages::fill(&found, size, outbound::step);
        let last = last.map(|step| listing.token(&step.step.to_string()));
        Ok(v1::ListStepsResponse { next_page_token: last.unwrap_or_default(), steps })
    }

    async fn thinned_steps(
        &self,
        job: JobId,
        after: u64,
        points: u32,
    ) -> Result<v1::ListStepsResponse, FailedRequest> {
        // Steps that come while this is read are behind the last one that counts here.
        let last = self.0.handle.job(job).await?.step;
        let mut thinner = Thinner::new(Range { after, last }, points);
        let mut read = after;
        while read < last {
            let steps = self.0.handle.store().steps(job, read, READ).await?;
            let Some(newest) = steps.last() else { break };
            read = newest.step;
            steps.into_iter().filter(|step| step.step <= last).for_each(|step| thinner.add(step));
        }
        let steps = thinner.finish().iter().map(outbound::step).collect();
        Ok(v1::ListStepsResponse { next_page_token: String::new(), steps })
    }
}

/// How many points a request for a chart wants.
fn points(request: &v1::ListStepsRequest) -> Result<u32, FieldError> {
    let given = u32::try_from(request.max_points).ok();
    let points = given.filter(|points| (POINTS.0..=POINTS.1).contains(points)).ok_or_else(|| {
        let problem = format!("got {}; allowed: 0, or {} to {}", request.max_points, POINTS.0, POINTS.1);
        FieldError::new("max_points", problem)
    })?;
    let pages = [("page_size", request.page_size != 0), ("page_token", !request.page_token.is_empty())];
    match pages.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => {
            Err(FieldError::new(field, "is given with max_points, whose answer has no pages"))
        }
        None => Ok(points),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_bounded_and_have_no_pages() {
        let request = |max_points| v1::ListStepsRequest { max_points, ..Default::default() };
        assert_eq!((points(&request(4)), points(&request(10_000))), (Ok(4), Ok(10_000)));
        for wrong in [-1, 1, 3, 10_001, i32::MAX] {
            let error = points(&request(wrong)).unwrap_err();
            assert_eq!(error.field, "max_points");
            assert_eq!(error.problem, format!("got {wrong}; allowed: 0, or 4 to 10000"));
        }
        let paged = v1::ListStepsRequest { page_size: 5, ..request(9) };
        assert_eq!(points(&paged).unwrap_err().field, "page_size");
        let paged = v1::ListStepsRequest { page_token: "x".to_owned(), ..request(9) };
        assert_eq!(points(&paged).unwrap_err().field, "page_token");
    }
}
