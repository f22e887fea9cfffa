//! Workers' sessions.

use ringtune_coordinator::core::Options;
use ringtune_proto::v1::{self, session_request::Message as Up};
use tonic::Code;

use crate::support::Coordinator;

#[tokio::test]
async fn the_newest_session_wins_and_silence_or_nonsense_ends_one() {
    let options = Options { session_timeout: 1000, ..Options::default() };
    let coordinator = Coordinator::fresh(options).await;
    let first = coordinator.worker().await;
    let second = coordinator.worker_like(first.hello.clone()).await.unwrap();
    assert_eq!(first.end().await.unwrap().code(), Code::Aborted);
    // Nothing more is heard of the second one.
    assert_eq!(second.end().await.unwrap().code(), Code::Aborted);

    let third = coordinator.worker().await;
    third.say(Up::RankReport(v1::RankReport::default())).await;
    assert_eq!(third.end().await.unwrap().code(), Code::InvalidArgument);
    coordinator.stop().await;
}
