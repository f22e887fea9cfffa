use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tracing::{Level, Span, error_span, info, warn};
use tracing_log::log;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

use super::*;

/// Which of two lines are written.
fn written(given: &str) -> (bool, bool) {
    let subscriber = tracing_subscriber::registry().with(
        tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(filter(given).unwrap()),
    );
    tracing::subscriber::with_default(subscriber, || {
        (tracing::enabled!(target: "audit", Level::INFO), tracing::enabled!(target: "other", Level::INFO))
    })
}

#[test]
fn the_audit_log_is_written_whatever_the_filter_says() {
    assert_eq!(written("info"), (true, true));
    for quiet in ["off", "error", "other=warn", "audit=off"] {
        assert_eq!(written(quiet), (true, false), "{quiet}");
    }
    assert!(matches!(filter("a=b=c"), Err(LoggingError::Filter { .. })));
}

#[test]
fn a_stranger_cannot_fill_the_log_by_breaking_the_rules_of_http2() {
    let shown = |given: &str| {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(filter(given).unwrap()), || {
            let h2 = tracing::enabled!(target: "h2::proto::ping_pong", Level::WARN);
            let own = tracing::enabled!(target: "ringtune_coordinator::grpc", Level::INFO);
            [h2, own]
        })
    };
    assert_eq!(shown("info"), [false, true]);
    assert_eq!(shown("debug,hyper=info"), [false, true]);
    // Who asks for it has it.
    assert_eq!(shown("info,h2=warn"), [true, true]);
    assert_eq!(shown(""), [false, false]);
    let refused = filter("info,=,").unwrap_err().to_string();
    assert!(refused.contains("\"info,=,\"") && !refused.contains("h2"), "{refused}");
}

/// Captures the output in one string.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines that `say` writes.
fn said(form: Lines, given: &str, say: impl FnOnce()) -> Vec<String> {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .fmt_fields(JsonFields::new())
        .event_format(form)
        .with_env_filter(filter(given).unwrap())
        .finish();
    tracing::subscriber::with_default(subscriber, say);
    let bytes = written.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

fn rank_of_a_job() -> Span {
    let nothing = tracing::field::Empty;
    error_span!(target: ABOUT, "rank", job = %"j-1", rank = nothing, epoch = 1u64)
}

/// Four lines of a rank that goes from one ring to another, and one of somebody else.
fn a_life() {
    let span = rank_of_a_job();
    span.in_scope(|| {
        warn!(file = "a", "joins");
        span.record("rank", 0u64);
        span.record("epoch", 2u64);
        warn!("works");
        // Another one's.
        warn!(epoch = 1u64, "is late");
        info!("is quiet");
    });
    warn!("else");
}

#[test]
fn a_line_has_what_its_span_is_about_once_and_as_it_is_now() {
    let lines = said(Lines::Json, "info", a_life);
    let read = |line: &String| -> Value { serde_json::from_str(line).unwrap() };
    let about = |line: &String| {
        let line = read(line);
        json!([line["message"], line["job"], line["rank"], line["epoch"], line["level"]])
    };
    let expected = [
        json!(["joins", "j-1", null, 1, "WARN"]),
        json!(["works", "j-1", 0, 2, "WARN"]),
        json!(["is late", "j-1", 0, 1, "WARN"]),
        json!(["is quiet", "j-1", 0, 2, "INFO"]),
        json!(["else", null, null, null, "WARN"]),
    ];
    assert_eq!(lines.iter().map(about).collect::<Vec<_>>(), expected);
    // A reader that keeps the last of two would not see it.
    for name in ["\"job\":", "\"rank\":", "\"epoch\":", "\"message\":", "\"target\":"] {
        assert!(lines.iter().all(|line| line.matches(name).count() <= 1), "{lines:?}");
    }
    assert_eq!(read(&lines[0])["file"], "a");
    assert!(lines[0].starts_with("{\"timestamp\":\"2"), "{lines:?}");

    let lines = said(Lines::Human, "info", a_life);
    let ends = |number: usize, end: &str| {
        let line = &lines[number];
        assert!(line.ends_with(end), "{line:?}");
    };
    ends(0, "logging::tests: joins file=\"a\" epoch=1 job=j-1");
    ends(1, " WARN ringtune_shared::daemon::logging::tests: works epoch=2 job=j-1 rank=0");
    ends(2, "is late epoch=1 job=j-1 rank=0");
    ends(4, "logging::tests: else");
}

#[test]
fn a_line_has_it_whatever_the_filter_says_of_who_opened_the_span() {
    for given in ["warn", "ringtune_shared::daemon::logging=warn", "off,ringtune_shared=warn"] {
        let lines = said(Lines::Json, given, a_life);
        assert_eq!(lines.len(), 4, "{given}: {lines:?}");
        assert!(lines[1].contains("\"epoch\":2,\"job\":\"j-1\",\"rank\":0"), "{given}: {lines:?}");
    }
    assert!(said(Lines::Json, "off", a_life).is_empty());
}

#[test]
fn what_a_line_says_cannot_look_like_another_line() {
    let say = || info!(path = "a\n{\"level\":\"ERROR\"}\u{1b}[2J", "two\nlines\u{1b}[2J");
    let lines = said(Lines::Json, "info", say);
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((lines.len(), &line["message"]), (1, &json!("two\nlines\u{1b}[2J")));
    let lines = said(Lines::Human, "info", say).join("");
    assert!(!lines.contains('\u{1b}') && !lines.contains("\nlines\u{1b}"), "{lines:?}");
}

#[test]
fn lines_of_libraries_that_log_otherwise_have_their_own_target() {
    let record =
        log::Record::builder().target("hub").args(format_args!("hello")).level(log::Level::Warn).build();
    let lines = said(Lines::Json, "info", || tracing_log::format_trace(&record).unwrap());
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(
        (&line["target"], &line["message"], &line["level"]),
        (&json!("hub"), &json!("hello"), &json!("WARN"))
    );
}
