//! Pictures come through interruptions.

use ringtune_fake_engine::FakeScript;
use ringtune_proto::v1::RankPhase;
use ringtune_shared::ids::JobId;

use crate::worker::{Alone, job_on, pictures};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_that_breaks_goes_on_where_it_was() {
    let mut alone = Alone::start(FakeScript::default()).await;
    let pictures = pictures(1);
    let content = pictures[0].1.clone();
    let spec = job_on(&alone.coordinator, pictures, 2, 1);
    let part = content.len() / 3 + 1;
    alone.coordinator.cut_downloads_after(part);
    let id = JobId::new();
    alone.session.assign_alone(id, &spec).await;
    alone.session.until(RankPhase::Ready).await;
    let part = part as i64;
    assert_eq!(alone.coordinator.downloads_of(&content), [0, part, 2 * part]);
}
