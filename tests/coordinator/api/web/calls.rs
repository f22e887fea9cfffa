//! Calls as JSON: the same answers as over gRPC, for the same callers.

use std::collections::BTreeSet;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use ringtune_coordinator::access::table::{GRPC, OF_WORKERS};
use ringtune_proto::v1;
use ringtune_security::{Csr, Role};
use serde_json::Value;
use tonic::transport::Channel;

use super::{Browser, secured};
use crate::{coordinator::Coordinator, soon, versions::Raw, worker::Worker};

/// Methods with one answer that browsers may call: "JobService/GetJob".
fn unary(pool: &DescriptorPool) -> Vec<String> {
    let mut all = Vec::new();
    for service in pool.services().filter(|service| !OF_WORKERS.contains(&service.full_name())) {
        for method in service.methods() {
            let name = format!("{}/{}", service.name(), method.name());
            let streams = method.is_client_streaming() || method.is_server_streaming();
            if !streams && !["AccessService/Join", "AccessService/RenewCertificate"].contains(&name.as_str())
            {
                all.push(name);
            }
        }
    }
    assert!(all.len() >= 25, "the search finds {all:?}");
    all
}

/// As above over gRPC: the answer as JSON, or the error's code and text.
async fn by_grpc(
    channel: &Channel,
    pool: &DescriptorPool,
    name: &str,
    json: &str,
) -> Result<String, (String, String)> {
    let (service, method) = name.split_once('/').unwrap();
    let service = pool.get_service_by_name(&format!("ringtune.v1.{service}")).unwrap();
    let method = service.methods().find(|found| found.name() == method).unwrap();
    let mut reader = serde_json::Deserializer::from_str(json);
    let message = DynamicMessage::deserialize(method.input(), &mut reader).unwrap();
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = format!("/ringtune.v1.{name}").parse().unwrap();
    let answer = soon(
        name,
        client.unary(tonic::Request::new(message.encode_to_vec()), path, Raw(|bytes| Ok(bytes.to_vec()))),
    )
    .await;
    match answer {
        Ok(answer) => {
            let answer = DynamicMessage::decode(method.output(), answer.get_ref().as_slice()).unwrap();
            Ok(serde_json::to_string(&answer).unwrap())
        }
        Err(status) => Err((format!("{:?}", status.code()), status.message().to_owned())),
    }
}

/// An answer without the coordinator's clock in it, which has gone on between two calls.
fn timeless(json: &str) -> Value {
    let mut answer: Value = serde_json::from_str(json).unwrap();
    answer.as_object_mut().unwrap().remove("time");
    answer
}

/// InvalidArgument is invalid_argument.
fn snake(code: &str) -> String {
    let mut text = String::new();
    for letter in code.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[tokio::test]
async fn each_call_answers_as_over_grpc() {
    let pool = DescriptorPool::decode(ringtune_proto::FILE_DESCRIPTOR_SET).unwrap();
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let job = coordinator.create(1).await.job_id;
    let worker = Worker::start(&coordinator, "host-a").await.hello.worker_id;
    let other = coordinator.create(1).await.job_id;
    let (of_job, of_worker) = (format!(r#"{{"jobId":"{job}"}}"#), format!(r#"{{"workerId":"{worker}"}}"#));
    let create = r#"{"requestId":"web-1","queue":{"labels":{"a":"é"}},"spec":{"kind":"textual_inversion","name":"n","model":{"base":"/m"},"data":{"images":"/i"},"train":{"placeholderToken":"<s>","initializerToken":"star","maxTrainSteps":"5"},"cluster":{"worldSize":2}}}"#;
    let requests = |name: &str| match name {
        "JobService/CreateJob" => create.to_owned(),
        "JobService/ListJobs" => r#"{"pageSize":1,"orderBy":"create_time"}"#.to_owned(),
        "JobService/CancelJob" => format!(r#"{{"jobId":"{other}","reason":"x"}}"#),
        "JobService/CreateSweep" => r#"{"requestId":"web-2","halving":true}"#.to_owned(),
        _ if name.contains("Sweep") => r#"{"sweepId":"0191a2b3-0000-7000-8000-000000000000"}"#.to_owned(),
        _ if name.contains("Worker") && !name.contains("List") => of_worker.clone(),
        _ if name.starts_with("JobService") || name.starts_with("ArtifactService") => of_job.clone(),
        _ => "{}".to_owned(),
    };
    let (mut succeeded, mut failed) = (Vec::new(), 0);
    for name in unary(&pool) {
        for json in [requests(&name), "{}".to_owned()] {
            // A call with an effect is repeated; on another job, if it cannot be.
            if name == "JobService/CancelJob" && json != "{}" {
                let done = browser.call(&name, &json).await;
                assert_eq!(done.json()["job"]["state"], "JOB_STATE_CANCELLED", "{done:?}");
            }
            let expected = by_grpc(&coordinator.channel, &pool, &name, &json).await;
            let given = browser.call(&name, &json).await;
            assert_eq!(given.header("content-type"), Some("application/json"), "{name}");
            match expected {
                Ok(expected) => {
                    let given = (given.status, timeless(&given.text()));
                    assert_eq!(given, (200, timeless(&expected)), "{name} {json}");
                    succeeded.push(name.clone());
                }
                Err((code, text)) => {
                    let error = given.json();
                    assert!(given.status >= 400, "{name} {json}");
                    assert_eq!(
                        (&error["code"], &error["message"]),
                        (&snake(&code).into(), &text.into()),
                        "{name}"
                    );
                    failed += 1;
                }
            }
        }
    }
    let names: BTreeSet<String> = succeeded.into_iter().collect();
    assert!(names.len() >= 12 && failed >= 10, "{failed} failed, and these did not: {names:?}");
    coordinator.stop().await;
}

#[tokio::test]
async fn requests_that_cannot_be_read_are_told_why() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let large = format!(r#"{{"jobId":"{}"}}"#, "x".repeat(1 << 20));
    for (json, status, code) in [
        ("", 400, "invalid_argument"),
        ("{", 400, "invalid_argument"),
        ("[]", 400, "invalid_argument"),
        (r#"{"nothing":1}"#, 400, "invalid_argument"),
        (r#"{"jobId":7}"#, 400, "invalid_argument"),
        (&"[".repeat(100_000), 400, "invalid_argument"),
        (&large, 400, "invalid_argument"),
        (r#"{"jobId":"../../etc/passwd"}"#, 400, "invalid_argument"),
    ] {
        let answer = browser.call("JobService/GetJob", json).await;
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (status, &code.into()),
            "{:.80} {answer:?}",
            json
        );
    }
    for (method, status) in
        [("JobService/Nothing", 501), ("JobService/WatchJob", 501), ("AccessService/Join", 501)]
    {
        let answer = browser.call(method, "{}").await;
        assert_eq!((answer.status, &answer.json()["code"]), (status, &"unimplemented".into()), "{answer:?}");
    }
    let packed = browser.and("content-encoding", "gzip").call("ClusterService/GetCluster", "{}").await;
    assert_eq!(packed.status, 501, "{packed:?}");
    assert_eq!(browser.send("GET", "/api/ringtune.v1.JobService/ListJobs", b"").await.status, 405);
    // Messages as their bytes are for programs.
    let binary = browser.and("content-type", "application/proto");
    let path = "/api/ringtune.v1.ClusterService/GetCluster";
    let answer = binary.send("POST", path, b"").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/proto")));
    let cluster = v1::GetClusterResponse::decode(answer.body.as_slice()).unwrap();
    assert_eq!(cluster.version, ringtune_shared::version::VERSION);
    assert_eq!(binary.send("POST", path, b"\xff").await.status, 400);
    coordinator.stop().await;
}

#[tokio::test]
async fn what_another_site_sends_does_nothing() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let job = coordinator.create(1).await.job_id;
    let cancel = format!(r#"{{"jobId":"{job}"}}"#);
    let port = coordinator.http.port();
    for (name, value, status) in [
        ("host", "evil.example", 421),
        ("host", &format!("localhost.evil.example:{port}"), 421),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", &format!("http://localhost:{}", port ^ 1), 403),
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "same-site", 403),
        ("content-type", "text/plain", 415),
        ("content-type", "application/x-www-form-urlencoded", 415),
    ] {
        let other = browser.and(name, value);
        assert_eq!(other.call("JobService/CancelJob", &cancel).await.status, status, "{name}: {value}");
        if name != "content-type" {
            assert_eq!(other.get("/api/events").await.status, status, "{name}: {value}");
        }
    }
    assert_eq!(browser.and("host", "evil.example").get("/").await.status, 421);
    assert_eq!(
        browser.and("host", "evil.example").get("/readyz").await.status,
        200,
        "probes may call it anything"
    );
    assert_eq!(coordinator.job(&job).await.state(), v1::JobState::Queued);
    // Its own page may.
    let own = browser.and("origin", &format!("http://localhost:{port}")).and("sec-fetch-site", "same-origin");
    assert_eq!(own.call("JobService/CancelJob", &cancel).await.status, 200);
    assert_eq!(coordinator.job(&job).await.state(), v1::JobState::Cancelled);
    let page = browser.get("/").await;
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-frame-options", "DENY"),
    ] {
        assert_eq!(page.header(name), Some(value));
        assert_eq!(browser.get("/api/nothing").await.header(name), Some(value));
    }
    coordinator.stop().await;
}

/// A message that no method has: whatever is behind the layers is not done.
const BROKEN: &str = r#"{"noSuchField":1}"#;

#[tokio::test]
async fn each_role_may_call_what_it_may_over_grpc() {
    let pool = DescriptorPool::decode(ringtune_proto::FILE_DESCRIPTOR_SET).unwrap();
    let coordinator = secured().await;
    let stranger = Browser::of(&coordinator);
    let mut callers = vec![(None, stranger.clone())];
    for (wire, role) in [
        (v1::Role::Submitter, Role::Submitter),
        (v1::Role::Observer, Role::Observer),
        (v1::Role::Admin, Role::Admin),
    ] {
        let token = coordinator.token(wire, "ada").await.secret;
        callers.push((Some(role), stranger.by_cookie(&token)));
        callers.push((Some(role), stranger.by_bearer(&token).by_cookie("rta1.nonsense")));
    }
    for role in Role::ALL {
        let name = if role == Role::Worker { "0193f2a4-5b6c-7d8e-9f00-112233445566" } else { "ada" };
        let (key, csr) = Csr::make().unwrap();
        let pki = coordinator.pki.as_ref().unwrap();
        let issued = pki.issue(csr.der().to_vec(), role, name.to_owned()).await.unwrap();
        let credentials =
            ringtune_security::Credentials::new(key, &issued.chain_pem(), pki.trust().roots()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        credentials.store(&own).unwrap();
        let identity = std::fs::read_to_string(own.join("identity.pem")).unwrap();
        callers.push((Some(role), Browser::with_identity(&coordinator, &identity)));
    }
    // From where too many wrong tokens came none is looked at: they come last.
    callers.push((None, stranger.by_cookie("rta1.nonsense")));
    for (role, browser) in callers {
        let session = browser.get("/api/session").await.json();
        let methods: BTreeSet<String> = serde_json::from_value(session["methods"].clone()).unwrap();
        assert_eq!(session["role"], role.map_or("", Role::as_str), "{session}");
        for name in unary(&pool) {
            let row = GRPC.iter().find(|row| row.method.ends_with(&name)).unwrap();
            let may = role.is_some_and(|role| row.is_for(role));
            let answer = browser.call(&name, BROKEN).await;
            let expected = match (may, role) {
                (true, _) => 400,
                (false, Some(_)) => 403,
                // Callers with too many wrong tokens are refused at once.
                (false, None) if answer.status == 429 => 429,
                (false, None) => 401,
            };
            assert_eq!(answer.status, expected, "{name} for {role:?}: {answer:?}");
            assert_eq!(methods.contains(&name), may, "{name} in the session of {role:?}");
        }
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn a_message_that_cannot_be_read_counts_as_its_callers_mistake() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    for wrong in ["{", "[]", r#"{"nothing":1}"#] {
        let answer = browser.call("JobService/GetJob", wrong).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &"invalid_argument".into()), "{answer:?}");
        assert!(answer.text().contains("allowed: a JSON object"), "{answer:?}");
    }
    let binary = browser.and("content-type", "application/proto").call("JobService/GetJob", "\u{7f}").await;
    assert_eq!(binary.status, 400, "{binary:?}");
    let metrics = coordinator.http_get("/metrics").await;
    let counted = r#"ringtune_rpcs_total{code="INVALID_ARGUMENT",method="JobService/GetJob"} 4"#;
    assert!(metrics.contains(counted) && !metrics.contains("INTERNAL"), "{metrics}");
    coordinator.stop().await;
}
