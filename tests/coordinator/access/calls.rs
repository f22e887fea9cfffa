//! Callers who make more calls than they may.

use std::time::{Duration, Instant};

use ringtune_coordinator::settings::LimitSettings;
use ringtune_proto::v1::{self, access_service_client::AccessServiceClient};
use ringtune_security::Role;
use tokio::task::JoinSet;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::{
    soon,
    stage::{Client, Stage},
};

/// More than can be answered in a burst or wait for a turn, however slow the machine is.
const MANY: usize = 200;
/// Longer than any wait of a caller with turns left, shorter than that of one without.
const WAIT: Duration = Duration::from_secs(5);

/// The caller's name, and how long the answer took.
async fn who_am_i(client: Client) -> Result<(String, Duration), Status> {
    let asked = Instant::now();
    let answer = AccessServiceClient::new(client).who_am_i(v1::WhoAmIRequest {}).await?;
    Ok((answer.into_inner().name, asked.elapsed()))
}

/// Calls without end; the first call that is refused, and the others, which wait.
async fn flood(client: &Client) -> (Status, JoinSet<Result<(String, Duration), Status>>) {
    let mut calls = JoinSet::new();
    for _ in 0..MANY {
        calls.spawn(who_am_i(client.clone()));
    }
    loop {
        let called = soon("a refused call", calls.join_next()).await.unwrap().unwrap();
        match called {
            Err(status) if status.code() == Code::ResourceExhausted => return (status, calls),
            Ok(_) => {}
            Err(status) => assert_eq!(status.code(), Code::Unauthenticated, "{status}"),
        }
    }
}

#[tokio::test]
async fn who_calls_too_often_is_refused_and_makes_nobody_else_wait() {
    let stage = Stage::within(&LimitSettings { calls_per_second: 1, ..LimitSettings::default() }).await;
    let ada = stage.known(Role::Submitter, "ada").await;
    let bob = stage.known(Role::Submitter, "bob").await;
    let olga = stage.anybody(Some(&stage.bearer(v1::Role::Observer, "olga").await.secret)).await;
    who_am_i(olga.clone()).await.unwrap();
    // A member, whatever it shows who it is by; then whoever else calls from this address.
    let stranger = stage.anybody(None).await;
    let mut waiting = Vec::new();
    for (client, name) in [(&ada, "submitter ada"), (&olga, "observer olga"), (&stranger, "127.0.0.1")] {
        let (refused, rest) = flood(client).await;
        assert!(refused.message().contains(name), "{refused}");
        assert!(refused.message().contains("limits.calls_per_second"), "{refused}");
        let after = refused.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert_eq!(after, Duration::from_secs(5));
        waiting.push(rest);
    }
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(who_am_i(bob.clone()).await.unwrap().0, "bob");
    }
    assert!(began.elapsed() < WAIT, "{:?}", began.elapsed());
    // Her waiting calls are answered, the last of them after nearly five seconds.
    let mut longest = Duration::ZERO;
    while let Some(called) = soon("a turn", waiting[0].join_next()).await {
        longest = called.unwrap().map_or(longest, |(_, took)| longest.max(took));
    }
    assert!(longest > Duration::from_secs(3), "{longest:?}");
    assert!(stage.denied("too_many_calls") > 3);
    stage.stop().await;
}
