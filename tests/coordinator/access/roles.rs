//! Every method, as every role and as nobody, on a real port.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use ringtune_coordinator::access::table::{GRPC, Row, Who};
use ringtune_proto::v1;
use ringtune_security::Role;
use tonic::{Code, body::Body};
use tower::{Service as _, ServiceExt as _};

use crate::{
    soon,
    stage::{Client, NODE, Stage},
};

/// A message that no handler reads: whatever is behind the layer is not done.
const BROKEN: &[u8] = &[0, 0, 0, 0, 1, 0xff];

/// A body of one message.
struct Once(Option<Bytes>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// The status at the end of an answer.
async fn trailing<B: http_body::Body<Data = Bytes>>(body: B) -> Option<Code> {
    let mut body = std::pin::pin!(body);
    while let Some(Ok(frame)) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
        if let Some(code) = frame.trailers_ref().and_then(code) {
            return Some(code);
        }
    }
    None
}

fn code(headers: &HeaderMap) -> Option<Code> {
    let status = headers.get("grpc-status")?.to_str().ok()?;
    Some(Code::from_bytes(status.as_bytes()))
}

async fn call(client: &mut Client, method: &str) -> Code {
    let body = Body::new(Once(Some(Bytes::from_static(BROKEN))));
    let request = http::Request::post(format!("https://coordinator{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    let answer = soon(method, client.ready().await.unwrap().call(request)).await.unwrap();
    if let Some(code) = code(answer.headers()) {
        return code;
    }
    soon(method, trailing(answer.into_body())).await.unwrap_or(Code::Unknown)
}

async fn is_let_in(client: &mut Client, row: &Row) -> bool {
    let code = call(client, row.method).await;
    assert!(code != Code::Ok || !row.changes, "{}: nothing is to be changed here", row.method);
    // Calls that are not denied are refused for their broken messages.
    !matches!(code, Code::Unauthenticated | Code::PermissionDenied)
}

#[tokio::test]
async fn each_method_is_for_the_roles_that_it_is_for() {
    let stage = Stage::new().await;
    let mut nobody = stage.anybody(None).await;
    for row in &GRPC {
        assert_eq!(is_let_in(&mut nobody, row).await, row.who == Who::Everybody, "{} for nobody", row.method);
    }
    let denied = stage.denied("no_identity");
    assert_eq!(denied, GRPC.iter().filter(|row| row.who != Who::Everybody).count() as u64);
    for role in Role::ALL {
        let mut known = stage.known(role, if role == Role::Worker { NODE } else { "ada" }).await;
        for row in &GRPC {
            assert_eq!(is_let_in(&mut known, row).await, row.is_for(role), "{} for {role}", row.method);
        }
        assert_eq!(call(&mut known, "/ringtune.v1.JobService/Nothing").await, Code::Unimplemented);
        assert_eq!(call(&mut known, "/ringtune.v1.RingService/Join").await, Code::Unimplemented);
    }
    for (wire, role) in [
        (v1::Role::Submitter, Role::Submitter),
        (v1::Role::Observer, Role::Observer),
        (v1::Role::Admin, Role::Admin),
    ] {
        let token = stage.bearer(wire, "bob").await.secret;
        let mut by_token = stage.anybody(Some(&token)).await;
        for row in &GRPC {
            let may = row.is_for(role) && row.who != Who::Certified;
            assert_eq!(is_let_in(&mut by_token, row).await, may, "{} for {role} by a token", row.method);
        }
    }
    assert!(stage.denied("role") > 0);
    let text = stage.metrics.text().unwrap();
    let counted = "ringtune_rpcs_total{code=\"UNAUTHENTICATED\",method=\"JobService/GetJob\"} 1";
    assert!(text.contains(counted), "calls that are not made are counted as calls, too");
    stage.stop().await;
}
