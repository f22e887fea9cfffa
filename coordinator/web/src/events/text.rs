//! Server-sent events, as text; and what is asked for.

use bytes::Bytes;
use http::HeaderMap;
use tonic::Status;

/// How long a browser waits before it asks again, in milliseconds; sent first.
pub(super) const RETRY: &str = "retry: 1000\n\n";
/// Says that the stream is alive.
pub(super) const ALIVE: &str = ": alive\n\n";

/// An event. `data` is JSON, which has no line breaks.
pub(super) fn event(name: &str, id: Option<u64>, data: &str) -> Bytes {
    let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
    Bytes::from(format!("event: {name}\n{id}data: {data}\n\n"))
}

/// The last event: why the stream ends.
pub(super) fn end(reason: &str) -> Bytes {
    event("end", None, &format!(r#"{{"reason":"{reason}"}}"#))
}

/// `{"jobs":[…]}`
pub(super) fn list(name: &str, items: &[String]) -> String {
    format!(r#"{{"{name}":[{}]}}"#, items.join(","))
}

/// What a page wants to hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// A job of which it wants every event,
    pub(super) job: Option<String>,
    /// after this one.
    pub(super) after: u64,
}

/// From `?job=ID&after=SEQUENCE`, and from the header that a browser sends when it asks again.
pub(super) fn asked(query: &str, headers: &HeaderMap) -> Result<Asked, Status> {
    let mut asked = Asked { job: None, after: 0 };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("job", id)) => asked.job = Some(id.to_owned()),
            Some(("after", number)) => asked.after = sequence("after", number)?,
            _ => {
                let text = format!("the query: got {pair:?}; allowed: job=JOB_ID and after=SEQUENCE");
                return Err(Status::invalid_argument(text));
            }
        }
    }
    // What came last counts, not where the page once began.
    if let Some(last) = headers.get("last-event-id") {
        asked.after = sequence("Last-Event-ID", last.to_str().unwrap_or("?"))?;
    }
    Ok(asked)
}

fn sequence(name: &str, text: &str) -> Result<u64, Status> {
    let wrong = || {
        Status::invalid_argument(format!("{name}: got {text:?}; allowed: the sequence number of an event"))
    };
    text.parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines() {
        assert_eq!(event("event", Some(7), "{}"), "event: event\nid: 7\ndata: {}\n\n");
        assert_eq!(end("time"), "event: end\ndata: {\"reason\":\"time\"}\n\n");
        assert_eq!(list("jobs", &["{}".to_owned(), "{}".to_owned()]), r#"{"jobs":[{},{}]}"#);
    }

    #[test]
    fn a_query_says_which_job_and_a_browser_where_it_was() {
        let of = |query: &str, last: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(last) = last {
                headers.insert("last-event-id", last.parse().unwrap());
            }
            asked(query, &headers).map(|asked| (asked.job, asked.after))
        };
        assert_eq!(of("", None).unwrap(), (None, 0));
        assert_eq!(of("job=x&after=3", None).unwrap(), (Some("x".to_owned()), 3));
        assert_eq!(of("after=3&job=x", Some("9")).unwrap(), (Some("x".to_owned()), 9));
        for wrong in ["job", "x=1", "after=-1", "after=", "after=99999999999999999999"] {
            assert_eq!(of(wrong, None).unwrap_err().code(), tonic::Code::InvalidArgument, "{wrong}");
        }
        assert!(of("", Some("x")).is_err());
    }
}
