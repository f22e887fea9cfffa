//! A collector's spans, read with the official messages, and the fate of spans that it does not take.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod collector;

use std::path::PathBuf;
use std::time::Duration;

use collector::{Answers, Collector, Got};
use ringtune_shared::daemon::traces::TraceSettings;
use ringtune_traces::{About, Error, Exporter, Tracer};
use tokio::time::timeout;

/// Timeout of a test's waits.
const SOON: Duration = Duration::from_secs(30);

fn start(endpoint: &str) -> (Tracer, Exporter) {
    let settings = TraceSettings { endpoint: endpoint.to_owned(), ..TraceSettings::default() };
    let about = About { service: "test", instance: "one".to_owned() };
    ringtune_traces::start(&settings, &about).unwrap()
}

fn named<'a>(got: &'a [Got], name: &str) -> &'a Got {
    let mut found = got.iter().filter(|got| got.span.name == name);
    let first = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(found.next().is_none(), "{name} came twice");
    first
}

#[tokio::test]
async fn spans_arrive_as_they_were_recorded() {
    let collector = Collector::start(Answers::Well).await.unwrap();
    let (tracer, exporter) = start(&collector.endpoint());
    let root = tracer.root().unwrap();
    let outer = tracer.open(Some(root), None, "outer").with("job", "j").with("rank", 3_u64);
    let mut inner = tracer.open_below(outer.context(), "inner").with("loss", 0.5).with("planned", true);
    inner.fail();
    drop(inner);
    drop(outer);
    timeout(SOON, exporter.finish()).await.unwrap();
    let got = collector.got();
    let (outer, inner) = (named(&got, "outer"), named(&got, "inner"));
    assert_eq!(outer.service, "test");
    assert_eq!(
        (outer.span.trace_id.as_slice(), outer.span.span_id.as_slice()),
        (&root.trace.0[..], &root.span.0[..])
    );
    assert!(outer.span.parent_span_id.is_empty());
    assert_eq!(
        (&inner.span.trace_id, &inner.span.parent_span_id),
        (&outer.span.trace_id, &outer.span.span_id)
    );
    assert_ne!(inner.span.span_id, outer.span.span_id);
    let attributes = ["job", "rank"].map(|key| outer.attribute(key).unwrap());
    assert_eq!(attributes, ["j", "3"]);
    let attributes = ["loss", "planned"].map(|key| inner.attribute(key).unwrap());
    assert_eq!(attributes, ["0.5", "true"]);
    assert!(outer.span.status.is_none());
    // STATUS_CODE_ERROR
    assert_eq!(inner.span.status.as_ref().unwrap().code, 2);
    assert!(outer.span.start_time_unix_nano <= inner.span.start_time_unix_nano);
    assert!(inner.span.start_time_unix_nano <= inner.span.end_time_unix_nano);
    assert!(inner.span.end_time_unix_nano <= outer.span.end_time_unix_nano);
}

#[tokio::test]
async fn spans_go_over_tls_to_the_collector_that_its_roots_know() {
    let folder = tempfile::tempdir().unwrap();
    let send = async |collector: &Collector, roots: &str| {
        let ca = folder.path().join("roots.pem");
        std::fs::write(&ca, roots).unwrap();
        let settings = TraceSettings { endpoint: collector.endpoint(), ca, ..TraceSettings::default() };
        assert!(settings.problems().is_empty(), "{:?}", settings.problems());
        let about = About { service: "test", instance: String::new() };
        let (tracer, exporter) = ringtune_traces::start(&settings, &about).unwrap();
        drop(tracer.open_below(tracer.root(), "step").with("job", "j"));
        timeout(SOON, exporter.finish()).await.unwrap();
    };
    let (collector, roots) = Collector::start_over_tls(Answers::Well, &["127.0.0.2"]).await.unwrap();
    assert!(collector.endpoint().starts_with("https://"));
    send(&collector, &roots).await;
    let got = collector.got();
    assert_eq!(named(&got, "step").attribute("job").as_deref(), Some("j"));
    // Nothing goes to one that other roots sign, or that is another host.
    let (other, other_roots) =
        Collector::start_over_tls(Answers::Well, &["collector.example"]).await.unwrap();
    send(&collector, &other_roots).await;
    send(&other, &other_roots).await;
    assert_eq!((collector.got().len(), other.got().len()), (1, 0));
}

#[tokio::test]
async fn more_than_fit_into_one_call_arrive_and_none_is_waited_for() {
    let collector = Collector::start(Answers::Well).await.unwrap();
    let (tracer, exporter) = start(&collector.endpoint());
    let root = tracer.root();
    for _ in 0..2000 {
        drop(tracer.open_below(root, "step"));
    }
    // Without an end too.
    assert!(collector.wait_for(|got| got.len() == 2000).await.is_some(), "{}", collector.got().len());
    drop(tracer.open_below(root, "last"));
    timeout(SOON, exporter.finish()).await.unwrap();
    assert_eq!(collector.got().len(), 2001);
}

#[tokio::test]
async fn a_collector_that_is_away_refuses_or_never_answers_costs_spans_alone() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let (refuses, never) =
        (Collector::start(Answers::Refuses).await.unwrap(), Collector::start(Answers::Never).await.unwrap());
    for endpoint in [closed, refuses.endpoint(), never.endpoint()] {
        let (tracer, exporter) = start(&endpoint);
        let root = tracer.root();
        // More than the queue holds: recording is no call that waits.
        for _ in 0..20_000 {
            drop(tracer.open_below(root, "step"));
        }
        assert!(timeout(SOON, exporter.finish()).await.is_ok(), "{endpoint} was waited for");
    }
    assert!(refuses.got().is_empty() && never.got().is_empty());
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_recorded() {
    let (tracer, exporter) = start("");
    assert!(tracer.root().is_none());
    timeout(SOON, exporter.finish()).await.unwrap();
}

#[tokio::test]
async fn roots_that_cannot_be_read_are_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let start = |ca: PathBuf| {
        let endpoint = "https://127.0.0.1:1".to_owned();
        let settings = TraceSettings { endpoint, ca, ..TraceSettings::default() };
        ringtune_traces::start(&settings, &About { service: "test", instance: String::new() })
    };
    for text in [None, Some("no PEM")] {
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        match start(file.clone()) {
            Err(Error::Ca { path, .. }) => assert_eq!(path, file),
            other => panic!("{other:?}"),
        }
    }
}
